"""Classes of Java that PySpark asks for in each call of a Column or a DataFrame, looked up once.

PySpark names them by their last word, `functions`, and forgets the answer. Java then searches all of Spark's jars for a
class of that name before it looks among the imports, and asks the class for the method: two questions before each call.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["remember_classes"]

#: As PySpark spells them.
_CLASSES: Final = (
    *("functions", "org.apache.spark.sql.functions"),
    *("ArrowIteratorServer", "PythonSQLUtils", "PythonUtils"),
)


class _JavaClass:
    """A class of Java that keeps its static methods."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._found, name)
        setattr(self, name, member)
        return member

    def __call__(self, *arguments: Any) -> Any:
        return self._found(*arguments)


def remember_classes(jvm: Any) -> None:
    """Let the view of a JVM (`SparkContext._jvm`) answer for these classes itself."""
    for name in _CLASSES:
        if name not in vars(jvm):
            setattr(jvm, name, _JavaClass(getattr(jvm, name)))
