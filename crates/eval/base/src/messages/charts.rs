//! Lines of the table of messages: axes and captions of charts.

/// Adds its lines to those before them, for the macro that comes next.
macro_rules! charts {
    ($next:ident $($later:ident)*: $($lines:tt)*) => { $next! { $($later)*: $($lines)*

    // Charts.
    AxisBlockSize: "block size", "ブロックサイズ";
    AxisDepth: "operations under way per job", "ジョブあたりの同時実行数";
    AxisRate: "IOPS that were asked for", "要求した IOPS";
    AxisBatch: "operations per submission", "1 回の投入あたりの操作数";
    AxisChangeOf: "change of {metric} (%)", "{metric}の変化 (%)";
    AxisForest: "change from the baseline, with 95 % interval (grey: does not matter)", "基準からの変化と 95 % 区間（灰色: 問題にならない範囲）";
    ForestRow: "{comparison}: {workload} {cell}, {metric}", "{comparison}: {workload} {cell}、{metric}";
    ForestCaption: "All ratios after {rounds} rounds. Point: geometric mean of the paired ratios; line: 95 % interval, for all {together} comparisons of the report together{widened}; verdicts are adjusted likewise (Bonferroni).{beyond}", "{rounds} ラウンド後のすべての比。点: 対の比の幾何平均、線: 報告の {together} 件の比較について同時の 95 % 区間{widened}。判定も同じく補正した (Bonferroni)。{beyond}";
    ForestWidened: ", widened for {looks} looks", "（{looks} 回の中間判定の分だけ広い）";
    RatioCaption: "Withheld verdicts of {comparison}: the ratio to the baseline, round by round{cut}.", "{comparison} の判定保留: 基準に対する比のラウンドごとの推移{cut}。";
    AxisRound: "round", "ラウンド";
    AxisRatio: "% of the baseline", "基準に対する %";
    ForestBeyond: " An arrow: it goes beyond the chart; the tables have the numbers.", "矢印: 図の外に続く。数値は表にある。";
    CurvesCaption: "{workload}{fixed}: medians over rounds with 95 % order-statistic intervals, n ≥ {n}{shaded}.", "{workload}{fixed}: ラウンドの中央値と 95 % 順序統計量区間、n ≥ {n}{shaded}。";
    CurvesShaded: "; shaded: the load's own CPU time, on a device that does nothing", "。網掛け: 何もしないデバイスでの負荷自体の CPU 時間";
    CurvesFixed: ", batches of {batch}, jobs {jobs}", "、バッチ {batch}、ジョブ {jobs}";
    RatiosOfCaption: "{workload}: paired ratios with 95 % intervals; the band of ± {band} % does not matter.", "{workload}: 対の比と 95 % 区間。± {band} % の帯の中は問題にならない。";
    HeatCaption: "{workload}, {size}: {metric} by jobs and depth, and its share of the best: medians over rounds.", "{workload}、{size}: ジョブ数と深さに対する{metric}と、最良値に対する割合。ラウンドの中央値。";
    SomeCells: " The first {shown} of {all} cells.", "全 {all} セルのうち最初の {shown} セル。";
    AxisIops: "operations per second", "毎秒の操作数";
    RateCaption: "{workload}, {size}: latency over operations per second, along more and more operations under way. Medians over rounds with 95 % intervals, n ≥ {n}.", "{workload}、{size}: 同時実行数を増やしていったときの、毎秒の操作数に対するレイテンシ。ラウンドの中央値と 95 % 区間、n ≥ {n}。";
    MultiplesCaption: "{workload}: bandwidth over {axis}, a panel for each number of {workers}, on one scale. Medians over rounds with 95 % intervals, n ≥ {n}.", "{workload}: {axis}に対する帯域幅。{workers}数ごとの図、目盛りは共通。ラウンドの中央値と 95 % 区間、n ≥ {n}。";
    AxisTransferSize: "transfer size", "転送サイズ";
    AxisUnderWay: "bytes under way (operations × block size)", "実行中のバイト数（操作数 × ブロックサイズ）";
    RoofCaption: "{workload}: measured bandwidth under its roofs: what is under way divided by the latency that the least of it had (slope), {roofs}. Points on the slope wait, points at a level roof have reached it.", "{workload}: 測定した帯域幅とその上限: 実行中のバイト数を、それが最も少ないときのレイテンシで割った値（斜線）、{roofs}。斜線上の点は待ち、水平線に達した点はその上限に達している。";
    RoofDevice: "the best that the device gave by itself (level: {device})", "デバイス単体の最良値（水平線: {device}）";
    RoofLink: "the link (level: {link})", "リンク（水平線: {link}）";
    RoofPanel: "{condition}: latency {latency} µs", "{condition}: レイテンシ {latency} µs";
    AxisSecond: "second of the run", "実行開始からの秒";
    SeriesCaption: "{workload}: bandwidth of each run, second by second, after the ramp; shaded: the window in which it has to be steady (five equal parts of it within 20 %, slope within 10 %). Dashed: runs that had not settled. n = {n} runs.{cut}", "{workload}: 各実行の助走後の毎秒の帯域幅。網掛け: 定常であるべき区間（5 等分した各部分が 20 % 以内、傾きが 10 % 以内）。破線: 定常に達しなかった実行。n = {n} 回。{cut}";
    AxisLatency: "latency (µs)", "レイテンシ (µs)";
    AxisSlower: "share of slower operations", "これより遅い操作の割合";
    TailCaption: "{workload}: share of operations that took longer (1 − p). Medians over rounds of the runs' own quantiles with 95 % intervals, n ≥ {n}; a quantile is left out where fewer than ten operations of a run lie beyond it.{cut}", "{workload}: それより時間のかかった操作の割合 (1 − p)。各実行の分位点のラウンドの中央値と 95 % 区間、n ≥ {n}。1 回の実行でその先に 10 操作未満しかない分位点は省く。{cut}";
    PanelBandwidth: "{jobs} × {depth}: MiB/s", "{jobs} × {depth}: MiB/s";
    BandwidthCpuCaption: "{workload}, {condition}: bandwidth (left, solid) and CPU time of the whole machine (right, dashed), by jobs × depth; both axes begin at 0. Medians over rounds with 95 % intervals.", "{workload}、{condition}: 帯域幅（左、実線）とマシン全体の CPU 時間（右、破線）、ジョブ × 深さごと。両軸とも 0 から。ラウンドの中央値と 95 % 区間。";
    ContainersCaption: "{workload}: {metric} by containers. Left: all together, until everything is durable, medians with 95 % intervals. Right: boxes of the single containers' own rates (least, quarters, most), until each one's last write returned; J is Jain's index of fairness.", "{workload}: コンテナ数ごとの{metric}。左: 全体、全てが永続化されるまで、中央値と 95 % 区間。右: 各コンテナの速度の箱（最小、四分位、最大）、それぞれ最後の書き込みが返るまで。J は Jain の公平性指数。";
    AllContainers: "all containers together", "全コンテナの合計";
    AxisAllContainers: "all, per second", "合計、毎秒";
    AxisEachContainer: "of each, per second", "各コンテナ、毎秒";
    } };
}
