# Asks a run's samples what gapscope's report says of them: counts, windows and
# quantiles of each target; by DuckDB in SQL, or by a plain loop over the rows.
# Compares with what the report left in the run's folder. Prints one JSON object.
import json, math, sys, time
import duckdb

way, run = sys.argv[1], sys.argv[2]
samples = f"read_parquet('{run}/samples/*.parquet')"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999, "max": 1.0}
WINDOW = ["target", "client", "from_ns", "to_ns", "gap_ns", "lower", "upper", "bad"]


def by_duckdb():
    base = f"""
        with probes as materialized (
            select target::varchar as target, client, slot, started_ns as started,
                finished_ns as finished,
                outcome = 'ok' and finished_ns - started_ns <= 250000000 as good
            from {samples})"""
    windows = duckdb.sql(f"""{base},
        beside as (
            select *,
                lag(good) over w as good_before, lag(started) over w as started_before,
                lag(finished) over w as finished_before, lead(good) over w as good_after,
                lead(finished) over w as finished_after
            from probes window w as (partition by target, client order by slot)),
        firsts as (
            select *, row_number() over (partition by target, client order by slot) as k
            from beside where not good and good_before is distinct from false),
        lasts as (
            select *, row_number() over (partition by target, client order by slot) as k
            from beside where not good and good_after is distinct from false)
        select target, client, f.started_before as from_ns, l.finished_after as to_ns,
            l.finished_after - f.finished_before as gap_ns,
            greatest(0, l.started - f.finished) as lower,
            l.finished_after - f.started_before as upper, l.slot - f.slot + 1 as bad
        from firsts f join lasts l using (target, client, k)""").fetchall()
    share = ", ".join(
        f"quantile_disc(finished_ns - started_ns, {q}) filter (outcome = 'ok') as {name}"
        for name, q in QUANTILES.items())
    figures = duckdb.sql(f"""
        select target::varchar, count(*), count(*) filter (outcome = 'ok'), {share}
        from {samples} group by 1""").fetchall()
    return windows, {row[0]: row[1:] for row in figures}


def by_loop():
    rows = duckdb.sql(f"""select target::varchar, client, started_ns, finished_ns,
        outcome = 'ok' from {samples} order by target, client, slot""").fetchall()
    begun = time.perf_counter()
    windows, latencies, probed = [], {}, {}
    before, stretch, who = None, None, None
    for target, client, started, finished, ok in rows:
        if who != (target, client):
            before, stretch, who = None, None, (target, client)
        probed[target] = probed.get(target, 0) + 1
        if ok:
            latencies.setdefault(target, []).append(finished - started)
        if ok and finished - started <= 250_000_000:
            if stretch is not None:
                first, last, bad = stretch
                windows.append((target, client, before[0], finished, finished - before[1],
                    max(0, last[0] - first[1]), finished - before[0], bad))
                stretch = None
            before = (started, finished)
        elif stretch is None:
            stretch = ((started, finished), (started, finished), 1)
        else:
            stretch = (stretch[0], (started, finished), stretch[2] + 1)
    figures = {}
    for target, values in latencies.items():
        values.sort()
        rank = lambda q: values[max(1, math.ceil(q * len(values))) - 1]
        figures[target] = (probed[target], len(values), *map(rank, QUANTILES.values()))
    return windows, figures, time.perf_counter() - begun


# It would stand on stdout, before the answer, as soon as a question takes long.
duckdb.sql("set enable_progress_bar = false")
begun = time.perf_counter()
if way == "duckdb":
    duckdb.sql("set memory_limit = '12GB'")
    windows, figures = by_duckdb()
    seconds = time.perf_counter() - begun
else:
    windows, figures, seconds = by_loop()

reported = duckdb.sql(f"""select target, client, from_ns, to_ns, gap_ns, outage_lower_ns,
    outage_upper_ns, bad from read_parquet('{run}/windows.parquet')
    where scope = 'client'""").fetchall()
differences = []
mine, theirs = set(windows), set(reported)
if len(windows) != len(reported) or mine != theirs:
    differences.append({"windows": [len(windows), len(reported)], "columns": WINDOW,
        "only here": sorted(mine - theirs)[:3], "only in the report": sorted(theirs - mine)[:3]})
quantiles = 0
with open(f"{run}/summary.json") as file:
    summary = json.load(file)
for row in summary["targets"]:
    here = figures[row["name"]]
    counts = (row["probed"], row["ok"])
    if counts != tuple(here[:2]):
        differences.append({"target": row["name"], "counts": [counts, here[:2]]})
    for name, value in zip(QUANTILES, here[2:]):
        said = row["latency_ms"][name]
        quantiles += 1
        if abs(said - value / 1e6) > 1e-9:
            differences.append({"target": row["name"], name: [said, value / 1e6]})
if len(figures) != len(summary["targets"]):
    differences.append({"targets": [len(figures), len(summary["targets"])]})
print(json.dumps({"seconds": seconds, "equal": not differences, "windows": len(windows),
    "probes": sum(f[0] for f in figures.values()), "quantiles": quantiles,
    "differences": differences[:5]}))
