"""Reconciliation as one DuckDB query: the rules of `conquiet.reconcile`, in the form that DuckDB runs fastest."""

from __future__ import annotations

from bench.reconcile_data import AS_OF
from conquiet.reconcile.rules import DEFAULT_RULES, LEVELS, METRIC_NAMES, TRUST_EVENTS, Level, Status

__all__ = ["query"]


def query(reports: str, metrics: str) -> str:
    """Return the query for sums over all verdicts, from two folders of Parquet files."""
    levels = _by_status({status: f"'{level}'" for status, level in LEVELS.items()})
    events = _by_status({status: f"'{event}'" for status, event in TRUST_EVENTS.items()})
    deltas = _by_status({status: str(_RULES.trust.deltas[event]) for status, event in TRUST_EVENTS.items()})
    missing = ", ".join(f"CASE WHEN {name} IS NULL THEN '{name}' END" for name in METRIC_NAMES)
    possible = " AND ".join(f"({name} IS NULL OR {name} >= 0)" for name in METRIC_NAMES)
    return f"""
WITH good_reports AS (
    SELECT * FROM read_parquet('{reports}/*.parquet')
    WHERE report_id IS NOT NULL AND {_names("affiliate_id", "platform", "post_id")}
    AND claimed_views >= 0 AND claimed_clicks >= 0 AND claimed_conversions >= 0
    AND submitted_at BETWEEN TIMESTAMPTZ '0001-01-02 00:00:00+00' AND {_AS_OF} AND attempt >= 1
), good_metrics AS (
    SELECT * FROM read_parquet('{metrics}/*.parquet')
    WHERE {_names("platform", "post_id")} AND {possible}
    AND observed_at BETWEEN TIMESTAMPTZ '0001-01-02 00:00:00+00' AND {_AS_OF}
), once AS (
    {_ONCE}
), newest AS (
    {_NEWEST}
), cases AS (
    SELECT once.*, views, clicks, conversions, 1.0::DOUBLE + {_RULES.growth_per_hour}::DOUBLE * least(
        {_RULES.growth_cap_hours}::DOUBLE,
        greatest((epoch_us(observed_at) - epoch_us(submitted_at))::DOUBLE / 3600000000.0::DOUBLE, 0.0::DOUBLE)
    ) AS allowance
    FROM once LEFT JOIN newest USING (platform, post_id)
), diffs AS (
    SELECT *, {", ".join(_diff(name) for name in METRIC_NAMES)} FROM cases
), largest AS (
    SELECT *, greatest(abs(diff_views), abs(diff_clicks), abs(diff_conversions)) AS max_diff,
        greatest(diff_views, diff_clicks, diff_conversions) AS most_above,
        (views IS NOT NULL)::INT + (clicks IS NOT NULL)::INT + (conversions IS NOT NULL)::INT AS observed
    FROM diffs
), statuses AS (
    SELECT *, CASE
        WHEN observed = 0 THEN 'MISSING_PLATFORM_DATA'
        WHEN observed < 3 THEN 'INCOMPLETE_PLATFORM_DATA'
        WHEN most_above >= {_RULES.overclaimed_from}::DOUBLE THEN 'AFFILIATE_OVERCLAIMED'
        WHEN max_diff <= {_RULES.matched_up_to}::DOUBLE THEN 'MATCHED'
        WHEN max_diff <= {_RULES.low_up_to}::DOUBLE THEN 'DISCREPANCY_LOW'
        WHEN max_diff <= {_RULES.medium_up_to}::DOUBLE THEN 'DISCREPANCY_MEDIUM'
        ELSE 'DISCREPANCY_HIGH' END AS status
    FROM largest
), verdicts AS (
    SELECT report_id, affiliate_id, platform, attempt, status, max_diff,
        CASE WHEN status = '{Status.AFFILIATE_OVERCLAIMED}' AND most_above >= {_RULES.critical_from}::DOUBLE
            THEN '{Level.CRITICAL}' ELSE {levels} END AS level,
        observed::DOUBLE / 3.0::DOUBLE AS confidence,
        {events} AS trust_event,
        {deltas} AS trust_delta,
        list_filter([{missing}], lambda one: one IS NOT NULL) AS missing_fields,
        {_retry_at()} AS scheduled_retry_at
    FROM statuses
)
SELECT status, level, count(*), sum(report_id)::BIGINT, sum(attempt)::BIGINT,
    sum(length(affiliate_id) + length(platform))::BIGINT,
    sum(floor(max_diff * 1000))::BIGINT, sum(floor(confidence * 1000))::BIGINT, sum(length(trust_event))::BIGINT,
    sum(trust_delta)::BIGINT, sum(len(missing_fields))::BIGINT,
    sum(epoch(scheduled_retry_at)::BIGINT)::BIGINT
FROM verdicts GROUP BY status, level
"""


_RULES = DEFAULT_RULES
_AS_OF = f"TIMESTAMPTZ '{AS_OF.isoformat(' ')}'"

_ONCE = """
    SELECT * FROM good_reports QUALIFY row_number() OVER (
        PARTITION BY report_id, attempt
        ORDER BY submitted_at, affiliate_id, platform, post_id, claimed_views, claimed_clicks, claimed_conversions
    ) = 1
"""
_NEWEST = """
    SELECT platform, post_id, arg_max_null(views, observed_at) AS views, arg_max_null(clicks, observed_at) AS clicks,
        arg_max_null(conversions, observed_at) AS conversions, max(observed_at) AS observed_at
    FROM (
        SELECT platform, post_id, observed_at, max(views) AS views, max(clicks) AS clicks,
            max(conversions) AS conversions
        FROM good_metrics GROUP BY platform, post_id, observed_at
    ) GROUP BY platform, post_id
"""


def _names(*columns: str) -> str:
    """Return the condition that texts are not blank, not too long and without NUL."""
    return " AND ".join(
        f"length({name}) BETWEEN 1 AND 255 AND NOT contains({name}, chr(0)) AND trim({name}) <> ''"
        for name in columns
    )


def _diff(name: str) -> str:
    claim, seen = f"claimed_{name}::DOUBLE", f"{name}::DOUBLE"
    upper, lower = f"{seen} * allowance", f"{seen} / allowance"
    return f"""CASE WHEN {name} IS NULL THEN NULL
        WHEN {claim} > {upper} THEN ({claim} - {upper}) / greatest({upper}, 1.0::DOUBLE)
        WHEN {claim} < {lower} THEN ({claim} - {lower}) / greatest({lower}, 1.0::DOUBLE)
        ELSE 0.0::DOUBLE END AS diff_{name}"""


def _by_status(values: dict[Status, str]) -> str:
    choices = (f"WHEN status = '{status}' THEN {value}" for status, value in values.items())
    return f"CASE {' '.join(choices)} END"


def _retry_at() -> str:
    choices = []
    for rule in _RULES.retries:
        number = "attempt" if rule.growing else "1"
        next_at = f"{_AS_OF} + to_microseconds({round(rule.delay_seconds * 1_000_000)} * {number}::BIGINT)"
        made = f"status = '{rule.status}' AND attempt < {rule.max_attempts}"
        if rule.within_seconds is not None:
            within = round(rule.within_seconds * 1_000_000)
            made += f" AND {next_at} <= submitted_at + to_microseconds({within})"
        choices.append(f"WHEN {made} THEN {next_at}")
    return f"CASE {' '.join(choices)} END"
