"""The archive of a queue, read by Spark, DuckDB and polars: a notebook in the percent format."""

# %% [markdown]
# # The archive of a queue, read by Spark, DuckDB and polars
#
# Run each cell after those above it, in VS Code or Jupyter (with jupytext), or run all of it:
#
#     pip install 'qworker-redis[spark]' duckdb polars
#     QWORKER_URL=redis://localhost NAMESPACE=shop LAKE=lake python examples/lake.py
#
# The queues of the namespace need a journal: `qworker queue set emails journal=all`. The last cell writes a table of
# Parquet files beside the archive.

# %%
import os
from pathlib import Path

import duckdb
import polars
from deltalake import DeltaTable

from qworker.pipeline.jobs.archive import archive, read_archive
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import server_options
from qworker.pipeline.session import open_session

place = Path(os.environ.get("LAKE", "lake"))
# A password in the URL stays in the environment: call this before Spark starts.
source = server_options(os.environ["QWORKER_URL"], os.environ.get("NAMESPACE", "qworker"))
spark = open_session()

# %% [markdown]
# ## Copy what is new in the journals to the archive
#
# Run it again and again: it continues where it stopped. `qworker spark archive --out lake --once` does the same.

# %%
lake = Lake(place)
done = archive(spark, lake, source, once=True)
print(f"archived {done.events:,} events")

# %% [markdown]
# ## Spark
#
# One row per event. `day` and `queue` are partitions: a condition on them skips files.

# %%
events = read_archive(spark, lake)
events.createOrReplaceTempView("events")
per_task = spark.sql(
    """
    select task, count(*) as attempts, percentile(run_ms, 0.95) as p95_ms
    from events
    where event in ('acked', 'nacked', 'timed_out', 'dead')
    group by task order by attempts desc, task
    """
)
per_task.show()

# %% [markdown]
# ## DuckDB and polars
#
# They read the Delta table as it is, without Spark and Java. Do not read `lake/**/*.parquet`: files of killed tasks
# and of earlier versions are there too.

# %%
stored = DeltaTable(str(place)).to_pyarrow_dataset()
print(duckdb.sql("select queue, event, count(*) as events from stored group by all order by all"))
print(polars.scan_delta(str(place)).group_by("queue").len().sort("queue").collect())

# %% [markdown]
# ## A stream from the source
#
# Without the archive: straight from the journals, each event once, in batches of at most 1,000 events. A batch that is
# repeated after a crash overwrites its own directory. If you delete the checkpoint, it begins at the start again.

# %%
attempts = place.with_name(f"{place.name}-attempts")
query = (
    spark.readStream.format("qworker")
    .options(**source, maxEventsPerTrigger="1000")
    .load("journal")
    .where("run_ms is not null")
    .select("queue", "task", "message_id", "attempt", "ts", "run_ms")
    .writeStream.foreachBatch(
        lambda rows, batch: rows.write.mode("overwrite").parquet(f"{attempts}/batch={batch:012d}")
    )
    .option("checkpointLocation", f"{attempts}/_checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

# %% [markdown]
# ## A table for other programs

# %%
daily = place.with_name(f"{place.name}-daily")
(
    read_archive(spark, lake)
    .where("event = 'acked'")
    .groupBy("day", "queue")
    .count()
    .coalesce(1)
    .write.mode("overwrite")
    .parquet(str(daily))
)
spark.read.parquet(str(daily)).orderBy("day", "queue").show()
