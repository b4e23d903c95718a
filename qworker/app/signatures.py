"""Signatures of handlers, read so that an annotation that cannot be evaluated is no error yet."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any, Final

__all__ = ["annotation_text", "signature_of"]

_FORWARD_REF: Final = re.compile(r"ForwardRef\('([^']*)'[^()]*\)")


def signature_of(function: Callable[..., Any], *, follow_wrapped: bool = True) -> inspect.Signature:
    """Return the signature of a function; what cannot be evaluated in its annotations stays text or a `ForwardRef`.

    From 3.14 on Python evaluates annotations when they are read: a missing name would raise `NameError` here, before
    an error can name the parameter. Raises `TypeError` or `ValueError` if the function has no signature.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(
            function, follow_wrapped=follow_wrapped, annotation_format=Format.FORWARDREF
        )
    return inspect.signature(function, follow_wrapped=follow_wrapped)


def annotation_text(annotation: Any) -> str:
    """Write an annotation as its source does."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _FORWARD_REF.sub(r"\1", text)
