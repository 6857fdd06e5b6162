//! Lines of the table of messages: verdicts, tables, method and data of a report.

/// Adds its lines to those before them, for the macro that comes next.
macro_rules! report {
    ($next:ident $($later:ident)*: $($lines:tt)*) => { $next! { $($later)*: $($lines)*

    // Verdicts.
    Equivalent: "equivalent", "同等";
    DifferentMatters: "different, matters", "差あり（重要）";
    DifferentSmall: "different, small", "差あり（小さい）";
    Inconclusive: "inconclusive", "未決";
    NeedsMore: "inconclusive, need about {more} more", "未決（あと約 {more} ラウンド必要）";
    NeedsMany: "inconclusive, need more than {most} rounds", "未決（{most} ラウンドを超えて必要）";
    Outliers: "inconclusive (outliers)", "未決（外れ値）";
    NoData: "no usable data", "使えるデータなし";
    HeldBackMark: " († of {all})", "（† {all} 件中）";
    NotDue: "inconclusive, the next look is {rounds} rounds ahead", "未決（次の中間判定まで {rounds} ラウンド）";
    WithheldTrend: "withheld: the ratio changes over the rounds", "判定保留: 比がラウンドとともに変わる";
    WithheldStep: "withheld: the ratio changes at once between two rounds", "判定保留: 比があるラウンドを境に変わる";
    WithheldOrder: "withheld: the ratio depends on the order within the pair", "判定保留: 比が対の中の順序に依存する";
    WithheldCarryOver: "withheld: carry-over from the run before", "判定保留: 直前の実行の影響が残る";
    WithheldAutocorrelated: "withheld: autocorrelated rounds", "判定保留: 隣り合うラウンドに自己相関がある";
    WithheldCliff: "withheld: speed changes at once within runs (a cache that fills?)", "判定保留: 実行中に速さが急に変わる（キャッシュが満杯になった可能性）";
    WithheldStalls: "withheld: runs stall", "判定保留: 実行が停止することがある";
    FlawTrend: "the ratio changes by {change} from the first to the last round", "最初から最後のラウンドまでに比が {change} 変わる";
    FlawStep: "the ratio changes by {change} after round {round}", "ラウンド {round} の後で比が {change} 変わる";
    FlawOrder: "the ratio is changed by {change} where the baseline runs first", "基準を先に実行すると比が {change} 変わる";
    FlawCarryOver: "a run right after {condition} is changed by {change}", "{condition}の直後の実行は {change} 変わる";
    FlawAutocorrelated: "each round resembles the one before (correlation {size})", "各ラウンドが直前のラウンドに似ている（相関 {size}）";
    FlawCliff: "{condition}: speed changes by {change} after {seconds} s, in {share} % of the runs", "{condition}: 実行の {share} % で、{seconds} 秒後に速さが {change} 変わる";
    FlawStalls: "{condition}: {share} % of the time stands nearly still, {seconds} s at the longest{tail}", "{condition}: 時間の {share} % でほぼ停止し、最長 {seconds} 秒{tail}";
    FlawTail: ", p99 latency {p99} µs", "、p99 レイテンシ {p99} µs";
    Withheld: "withheld", "判定保留";
    HeldBack: "† Alone, in a report of its own, the comparison would have another verdict. Verdicts and intervals count all comparisons of the report, of which one may stand out by chance (Bonferroni).", "† その比較だけの報告なら別の判定になる。偶然に目立つものがありうるため、判定と区間は報告のすべての比較を数える (Bonferroni)。";
    VerdictSentence: "{comparison}: {workload}, {cell}: {metric} {change}{interval}, n = {n}: {verdict}", "{comparison}: {workload}、{cell}: {metric} {change}{interval}、n = {n}: {verdict}";
    SentenceWith: "{sentence}; {further}", "{sentence}。{further}";
    ComparisonOf: "{name}: {other} against {baseline} (baseline)", "{name}: {baseline}（基準）に対する {other}";
    DecidedOf: "{decided} of {all} comparisons are decided after {rounds} rounds.", "{rounds} ラウンド後、{all} 件の比較のうち {decided} 件が決着した。";
    NotMeasuredLoad: "{workload}: not measured ({reason})", "{workload}: 未測定（{reason}）";

    // Headings and notices of the page.
    Verdicts: "Verdicts", "判定";
    Advice: "Advice", "助言";
    Method: "Method and environment", "方法と環境";
    Data: "Data", "データ";
    Commands: "Commands", "コマンド";
    QuickForm: "Quick form.", "簡易版。";
    QuickFormMeans: "Few cells and short runs, for a first look: it may well say inconclusive, and its numbers are no reference.", "最初の目安のため、セルは少なく実行は短い。「未決」となることも多く、数値は参考値にならない。";
    SyntheticForm: "Synthetic.", "合成データ。";
    SyntheticFormMeans: "No storage was measured: the numbers were drawn from a known truth.", "ストレージは測定していない。数値は既知の真値から生成した。";
    ImportedForm: "Imported.", "取り込み。";
    ImportedFormMeans: "Other programs measured this: nothing is known of caches, other load and the machine but what they said, and nothing is paired.", "他のプログラムによる測定。キャッシュ、他の負荷、マシンについては、それらが述べたことしか分からず、対になる実行はない。";
    NotAvailable: "not available", "利用不可";
    NotAvailableBecause: "Not available: {what}: {reason}", "利用不可: {what}: {reason}";

    // Tables.
    ColumnCell: "cell", "セル";
    ColumnComparison: "comparison", "比較";
    ColumnWorkload: "workload", "負荷";
    ColumnMetric: "metric", "指標";
    ColumnMean: "mean", "平均";
    ColumnChange: "change", "変化";
    ColumnInterval: "95 % interval", "95 % 区間";
    ColumnMedian: "median", "中央値";
    ColumnVerdict: "verdict", "判定結果";
    ColumnCondition: "condition", "条件";
    ValuesCaption: "{metric}: median over rounds", "{metric}: ラウンドの中央値";
    RatiosCaption: "changes from the baseline", "基準からの変化";
    PublishedBefore: "published before", "既発表";
    Published: "What was published, on other hardware ({source}): compare the shape, not the numbers.", "別のハードウェアで発表された値（{source}）。数値ではなく傾向を比べること。";
    CpuTime: "CPU time: {workload}", "CPU 時間: {workload}";
    CostLoad: "load, µs/I/O", "負荷, µs/I/O";
    CostContainer: "container, µs/I/O", "コンテナ, µs/I/O";
    CostNone: "none", "なし";
    CostOtherMachines: "other machines less idle, µs/I/O", "他のマシン（アイドル分を除く）, µs/I/O";
    CostServices: "services, µs/I/O", "サービス, µs/I/O";
    CostKernelThreads: "kernel threads, µs/I/O", "カーネルスレッド, µs/I/O";
    CostUser: "user, %", "user（ユーザー）, %";
    CostSystem: "system, %", "system（カーネル）, %";
    CostIrq: "irq, %", "irq, %";
    CostSoftirq: "softirq, %", "softirq（遅延割り込み）, %";
    CostSteal: "steal, %", "steal（横取り）, %";
    CostMachine: "machine less idle, µs/I/O", "マシン（アイドル時分を除く）, µs/I/O";
    CostLessGenerator: "less the generator, µs/I/O", "負荷生成器分も除く, µs/I/O";
    CostPerGib: "machine less idle, s/GiB", "マシン（アイドル時分を除く）, s/GiB";
    CostCaption: "CPU time: medians over rounds. Load, container (its cgroup), services and threads of the kernel by the scheduler (exact); user (with nice) to steal in percent of all CPUs by /proc/stat, ± the error of sampling in one run (95 %); the machine's busy time less what it used before the round, and less what the load takes on a device that does nothing", "CPU 時間: ラウンドの中央値。負荷・コンテナ（その cgroup）・サービス・カーネルスレッドはスケジューラによる（正確）。user（nice を含む）から steal までは /proc/stat による全 CPU に対する割合で、± は 1 回の実行での標本誤差 (95 %)。マシンの稼働時間は、ラウンド前の使用分を、さらに何もしないデバイスでの負荷自体の使用分を除く";

    // Method, environment, data, commands.
    MethodText: "Each round runs every cell under every condition once: the cells in random order, the conditions of a cell one right after the other in random order, with the same offsets. The first {warm_up} rounds warm up and are not counted. Ratios are paired by round; intervals are Student's on their logarithms, wider where rounds may resemble their neighbours, and hold for all {together} comparisons of this report and all looks together: at most 5 of 100 such reports hold a wrong verdict. Equivalent: the 90 % interval lies within the margin (two one-sided tests); different: no difference is excluded at 95 %, by mean and median; matters: so is everything within the margin; withheld: the ratio is not one number (trend, step, order, carry-over, autocorrelation, cliffs, stalls; 5 % of false alarms in all). Margins: ± {throughput} % of bandwidth and IOPS, ± {latency} % of latency. A run takes {run} after {ramp} of ramp.", "各ラウンドで、すべてのセルをすべての条件で 1 回ずつ実行する。セルの順は無作為で、1 つのセルの各条件は無作為な順で続けて、同じオフセットで実行する。最初の {warm_up} ラウンドは慣らしであり数えない。比はラウンドごとに対にし、区間はその対数のスチューデント区間で、隣り合うラウンドが似ている可能性の分だけ広く、この報告の {together} 件の比較とすべての中間判定について同時に成り立つ。誤った判定を含む報告は 100 件中 5 件以下である。同等: 90 % 区間が許容幅の中にある（片側検定 2 回）。差あり: 差がないことが、平均でも中央値でも 95 % で否定される。重要: 許容幅の内側もすべて否定される。保留: 比が 1 つの数ではない（傾向、段差、順序、直前の実行の影響、自己相関、急な変化、停止。誤警報は全体で 5 %）。許容幅: 帯域幅と IOPS は ± {throughput} %、レイテンシは ± {latency} %。1 回の実行は {ramp} の助走の後 {run}。";
    MethodImported: "Other programs made the runs; each time that the same was measured is a round here. Intervals of medians are order statistics.", "実行は他のプログラムによる。同じ測定の 1 回を 1 ラウンドとする。中央値の区間は順序統計量による。";
    RunsCounted: "{all} runs were counted, {unused} of them not used.", "{all} 回の実行を数え、うち {unused} 回は使わなかった。";
    RunsLeftOut: "{count} runs left out: {mark}", "{count} 回の実行を除外: {mark}";
    RunsMarked: "{count} runs marked: {mark}", "{count} 回の実行に注記: {mark}";
    Thresholds: "Thresholds of the advice", "助言のしきい値";
    FactEnding: "ended because", "終了の理由";
    FactEngine: "load by", "負荷の生成";
    FactVersion: "tsumugi", "tsumugi の版";
    FactStarted: "begun (UTC)", "開始 (UTC)";
    FactSeconds: "seconds", "所要秒数";
    FactConditions: "conditions", "条件の用意";
    FactDrift: "drift of the machine's speed", "マシンの速さの変動";
    DriftSeen: "{change} from the first to the last of {rounds} rounds ({low} … {high}); pairs are immune to it", "{rounds} ラウンドの最初から最後までに {change}（{low} … {high}）。対の比較には影響しない";
    DriftApart: "{change} from the first to the last of {rounds} rounds ({low} … {high}), and not the same under all conditions ({each}): pairs are not immune to that", "{rounds} ラウンドの最初から最後までに {change}（{low} … {high}）。条件によって異なる（{each}）ため、対の比較にも影響する";
    DriftUnseen: "{change} from the first to the last of {rounds} rounds ({low} … {high}); none is seen", "{rounds} ラウンドの最初から最後までに {change}（{low} … {high}）。変動は認められない";
    FactPng: "charts as PNG", "PNG の図";
    FactPlan: "plan (BLAKE3)", "計画 (BLAKE3)";
    PngNotAvailable: "not available: {reason}", "利用不可: {reason}";
    DataInPage: "All of it is in this page:", "すべてこのページに含まれる:";
    DataRuns: "every run (CSV)", "全実行 (CSV)";
    DataVerdicts: "verdicts and advice (JSON)", "判定と助言 (JSON)";
    DataExperiment: "the experiment (TOML)", "実験 (TOML)";
    DataBeside: "The database beside it (results.sqlite) also holds what every run printed.", "隣のデータベース (results.sqlite) には各実行の出力もある。";
    CommandsAgain: "All of it again:", "全体をもう一度:";
    CommandsRuns: "One run of each condition and cell, as it was executed; job files, where there are some, are for any fio.", "各条件・各セルの 1 回の実行を、実行したとおりに示す。ジョブファイルがある場合は、どの fio でも使える。";
    CommandsFiles: "Job files and commands", "ジョブファイルとコマンド";
    JobFile: "# job file:", "# ジョブファイル:";

    DataMarkdown: "the report (Markdown)", "報告 (Markdown)";
    DataDatabase: "the database (SQLite)", "データベース (SQLite)";

    // How experiments end.
    EndedDecided: "every comparison was decided", "すべての比較が決着した";
    EndedAllRounds: "all rounds were run", "すべてのラウンドを実行した";
    EndedTime: "the limit of time was reached", "時間の上限に達した";
    EndedWritten: "the limit of bytes written was reached", "書き込み量の上限に達した";
    EndedInterrupted: "it was interrupted", "中断された";

    // Marks of runs.
    MarkCached: "served from a cache", "キャッシュから返された";
    MarkTransient: "had not settled", "定常状態に達していない";
    MarkCacheUnknown: "no device counter", "デバイスのカウンタなし";
    MarkReadsUnknown: "reads that may have come from a cache", "キャッシュから返された可能性のある読み出し";
    MarkHints: "a hint was not taken", "ヒントが受け入れられていない";
    MarkSteadinessUnknown: "too short to see whether it settled", "短すぎて定常か判断できない";
    MarkOtherLoad: "other load on the CPUs", "CPU に他の負荷";
    MarkSteal: "CPU time stolen by the hypervisor", "ハイパーバイザに奪われた CPU 時間";
    MarkOtherTraffic: "other traffic on the device", "デバイスに他の通信";
    MarkLittle: "rate × latency is not what was under way", "レート × レイテンシが同時実行数と合わない";
    MarkUnsettled: "data of earlier runs was still being written", "前の実行のデータがまだ書き込まれていた";
    MarkSaturated: "the rate was not reached", "指定レートに達していない";
    } };
}
