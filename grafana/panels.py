"""The kinds of panels that the dashboards are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH = 24  # columns of a dashboard
AnyPanel = timeseries.Panel | stat.Panel | heatmap.Panel


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and what its lines are called."""

    expr: str
    legend: str = "__auto"


@dataclass(frozen=True, slots=True)
class Words:
    """What a panel says of itself."""

    title: str
    description: str
    unit: str  # of Grafana's list, as "s", "percentunit" or "short"


def lines(words: Words, *queries: Query, max_value: float | None = None) -> timeseries.Panel:
    """Lines over time, from 0 on."""
    panel = _timeseries(words, queries).fill_opacity(8).line_width(1.5)
    return panel if max_value is None else panel.max(max_value)


def stacked(
    words: Words, *queries: Query, colors: Mapping[str, str], max_value: float | None = None
) -> timeseries.Panel:
    """Areas on top of each other, each name in a colour of its own."""
    panel = (
        _timeseries(words, queries)
        .fill_opacity(75)
        .line_width(0)
        .stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    )
    for name, color in colors.items():
        fixed = {"mode": "fixed", "fixedColor": color}
        panel = panel.override_by_name(name, [dashboard.DynamicConfigValue(id_val="color", value=fixed)])
    return panel if max_value is None else panel.max(max_value)


def figure(words: Words, query: Query, mappings: Mapping[float, str] | None = None) -> stat.Panel:
    """The present value, large, with its way there behind it."""
    texts = {
        f"{value:g}": dashboard.ValueMappingResult(text=text, index=index)
        for index, (value, text) in enumerate((mappings or {}).items())
    }
    panel = (
        stat.Panel()
        .title(words.title)
        .description(words.description)
        .unit(words.unit)
        .datasource(SOURCE)
        .targets(_targets([query]))
        .no_value("-")
        .color_mode(common.BigValueColorMode.NONE)
        .graph_mode(common.BigValueGraphMode.AREA)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    return panel.mappings([dashboard.ValueMap(options=texts)]) if texts else panel


def heat(words: Words, bucket_query: str) -> heatmap.Panel:
    """How often which duration came, over time; the query gives increases by `le`."""
    query = prometheus.Dataquery().expr(bucket_query).legend_format("{{le}}").ref_id("A").range()
    return (
        heatmap.Panel()
        .title(words.title)
        .description(words.description)
        .datasource(SOURCE)
        .targets([query.format(PromQueryFormat.HEATMAP).datasource(SOURCE)])
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .y_axis(heatmap.YAxisConfig().unit(words.unit))
        .cell_values(heatmap.CellValues().unit("short"))
        .unit(words.unit)
    )


def quantiles(histogram: str, selector: str, legend: str) -> tuple[Query, Query]:
    """Median and 99th percentile of a histogram's values."""
    rates = f"sum by (le) (rate({histogram}_bucket{{{selector}}}[$__rate_interval]))"
    return (
        Query(f"histogram_quantile(0.5, {rates})", f"{legend}, median"),
        Query(f"histogram_quantile(0.99, {rates})", f"{legend}, 99 %"),
    )


def name_variable(label: str, metric: str) -> dashboard_builders.QueryVariable:
    """A variable with the values that a label of a metric has, all of them to begin with."""
    return (
        dashboard_builders.QueryVariable(label)
        .label(label.capitalize())
        .datasource(SOURCE)
        .query({"query": f"label_values({metric}, {label})", "refId": f"{label}s"})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
    )


def mark(name: str, expr: str, color: str) -> dashboard_builders.AnnotationQuery:
    """A line in every panel wherever the expression is true."""
    return dashboard_builders.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color).expr(expr)


def board(uid: str, title: str, description: str) -> dashboard_builders.Dashboard:
    """An empty dashboard with its data source."""
    source = dashboard_builders.DatasourceVariable("datasource").label("Data source").type("prometheus")
    return (
        dashboard_builders.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["gapless"])
        .refresh("10s")
        .time("now-30m", "now")
        .timezone("browser")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(source)
        .link(
            dashboard_builders.DashboardLink("Gapless")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags(["gapless"])
            .keep_time(True)
        )
    )


def filled(
    found: dashboard_builders.Dashboard,
    variable: dashboard_builders.QueryVariable,
    marks: Sequence[dashboard_builders.AnnotationQuery],
    rows: Sequence[tuple[int, Sequence[AnyPanel]]],
) -> dashboard_builders.Dashboard:
    """Give a dashboard its variable, its marks and its panels: those of a row (its height and they) in equal shares."""
    found = found.with_variable(variable)
    for event in marks:
        found = found.annotation(event)
    for panel in _placed(rows):
        found = found.with_panel(panel)
    return found


def _placed(rows: Sequence[tuple[int, Sequence[AnyPanel]]]) -> list[AnyPanel]:
    """Give each panel its place and an id, from 1 on."""
    panels: list[AnyPanel] = []
    top = 0
    for height, row in rows:
        width = WIDTH // len(row)
        for column, panel in enumerate(row):
            place = dashboard.GridPos(h=height, w=width, x=column * width, y=top)
            panels.append(panel.grid_pos(place).id(len(panels) + 1))
        top += height
    return panels


def _timeseries(words: Words, queries: Sequence[Query]) -> timeseries.Panel:
    return (
        timeseries.Panel()
        .title(words.title)
        .description(words.description)
        .unit(words.unit)
        .min(0)
        .datasource(SOURCE)
        .targets(_targets(queries))
        .show_points(common.VisibilityMode.NEVER)
        .tooltip(
            common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
        )
        .legend(
            common_builders.VizLegendOptions()
            .show_legend(True)
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
        )
    )


def _targets(queries: Sequence[Query]) -> list[Builder[Dataquery]]:
    return [
        prometheus.Dataquery()
        .expr(query.expr)
        .legend_format(query.legend)
        .ref_id(chr(ord("A") + number))
        .range()
        .datasource(SOURCE)
        for number, query in enumerate(queries)
    ]
