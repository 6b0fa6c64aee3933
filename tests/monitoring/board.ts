// The dashboard as Grafana reads it: types of its package @grafana/schema, and of the panels that the dashboard has.
// The package describes neither queries nor annotations of Prometheus, so their fields stand here.

import type * as grafana from "@grafana/schema";
import type * as stat from "./node_modules/@grafana/schema/dist/types/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as timeseries from "./node_modules/@grafana/schema/dist/types/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

type Query = grafana.DataQuery & {expr: string; legendFormat: string; instant?: boolean; range?: boolean};

interface FieldConfig<Custom> extends Omit<grafana.FieldConfigSource, "defaults"> {
    defaults: Omit<grafana.FieldConfig, "custom"> & {custom?: Custom};
}

interface Chart<Type extends string, Options, Custom>
    extends Omit<grafana.Panel, "type" | "options" | "fieldConfig" | "targets"> {
    type: Type;
    options: Options;
    fieldConfig: FieldConfig<Custom>;
    targets: Query[];
}

interface Annotation extends Omit<grafana.AnnotationQuery, "target"> {
    target: grafana.DataQuery & {expr: string; interval: string};
    titleFormat: string;
    textFormat: string;
}

export interface Board extends Omit<grafana.Dashboard, "annotations" | "panels"> {
    annotations: {list: Annotation[]};
    panels: (
        | Chart<"stat", stat.Options, never>
        | Chart<"timeseries", timeseries.Options, timeseries.FieldConfig>
        | grafana.RowPanel
    )[];
}
