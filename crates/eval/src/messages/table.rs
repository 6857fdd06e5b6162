//! The table of messages: key, English, Japanese.

macro_rules! messages {
    ($($(#[$part:meta])* $key:ident: $english:literal, $japanese:literal;)*) => {
        /// What can be said.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Message { $(#[doc = concat!("`", $english, "`")] $key,)* }

        impl Message {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$key),*];

            /// By language.
            pub(super) fn texts(self) -> [&'static str; 2] {
                match self { $(Self::$key => [$english, $japanese],)* }
            }
        }
    };
}

messages! {
    // Languages, in themselves.
    LanguageName: "English", "日本語";

    // What makes load, one of it.
    Job: "job", "ジョブ";
    Rank: "rank", "ランク";
    Instance: "instance", "インスタンス";
    Process: "process", "プロセス";
    Container: "container", "コンテナ";

    // Points of a plan.
    CellDepth: ", depth {depth}", "、深さ {depth}";
    CellRate: ", {rate} IOPS", "、{rate} IOPS";
    CellBatch: ", batches of {batch}", "、バッチ {batch}";

    // What a load does.
    LoadBlocksDirect: "pattern {pattern}, direct I/O", "パターン {pattern}、ダイレクト I/O";
    LoadBlocksCached: "pattern {pattern}, through the page cache", "パターン {pattern}、ページキャッシュ経由";
    LoadRate: "pattern {pattern} at a fixed rate over {units} units", "パターン {pattern}、固定レート、{units} ユニットに分散";
    LoadProgram: "command: {command}", "コマンド: {command}";
    LoadIorWrite: "IOR write{options}", "IOR 書き込み{options}";
    LoadIorRead: "IOR read{options}", "IOR 読み出し{options}";
    LoadFfsb: "FFSB profile, threads × operations with their weights: {groups}", "FFSB プロファイル、スレッド数 × 操作と重み: {groups}";
    LoadFilesOwn: "{items} files per process, own directories, {bytes} bytes written to each", "プロセスごとに {items} ファイル、個別のディレクトリ、各ファイルに {bytes} バイト書き込み";
    LoadFilesShared: "{items} files per process, one shared directory, {bytes} bytes written to each", "プロセスごとに {items} ファイル、共有ディレクトリ 1 個、各ファイルに {bytes} バイト書き込み";
    LoadFilesSynced: ", made durable", "、永続化あり";
    LoadFilesShifted: "; each process looks at, reads and removes its neighbour's", "。各プロセスは隣のプロセスのファイルを参照・読み出し・削除する";
    LoadImported: "another program, pattern {pattern}", "他のプログラム、パターン {pattern}";
    LoadImportedOwn: "another program, pattern {pattern}, own files", "他のプログラム、パターン {pattern}、個別ファイル";
    LoadImportedShared: "another program, pattern {pattern}, shared files", "他のプログラム、パターン {pattern}、共有ファイル";

    // Metrics in a sentence.
    Bandwidth: "bandwidth", "帯域幅";
    Iops: "IOPS", "IOPS";
    Latency: "mean latency", "平均レイテンシ";
    LatencyP99: "p99 latency", "p99 レイテンシ";
    CpuPerIo: "CPU per I/O", "I/O あたり CPU";
    MachineCpu: "CPU of the machine", "マシン全体の CPU";
    MachineCpuPerIo: "CPU of the machine per I/O", "I/O あたりのマシン全体の CPU";
    CpuPerGib: "CPU of the machine per GiB", "GiB あたりのマシン全体の CPU";
    Time: "time", "時間";
    Score: "score", "スコア";
    CreateRate: "create rate", "作成レート";
    StatRate: "stat rate", "stat レート";
    ReadRate: "read rate", "読み出しレート";
    RemoveRate: "remove rate", "削除レート";
    OpsTotal: "operations of all instances", "全インスタンスの操作数";
    OpsPerContainer: "operations per instance", "インスタンスあたりの操作数";
    Fairness: "fairness", "公平性";
    CopyUpRate: "first writes", "初回書き込み";
    SteadyRate: "second writes", "2 回目の書き込み";

    // Metrics with their units; those that have none are above.
    BandwidthUnit: "bandwidth (MiB/s)", "帯域幅 (MiB/s)";
    LatencyUnit: "mean latency (µs)", "平均レイテンシ (µs)";
    LatencyP99Unit: "p99 latency (µs)", "p99 レイテンシ (µs)";
    CpuPerIoUnit: "CPU of the load per I/O (µs)", "I/O あたりの負荷側 CPU (µs)";
    MachineCpuUnit: "CPU of the machine (%)", "マシン全体の CPU (%)";
    MachineCpuPerIoUnit: "CPU of the machine per I/O (µs)", "I/O あたりのマシン全体の CPU (µs)";
    CpuPerGibUnit: "CPU of the machine per GiB (s)", "GiB あたりのマシン全体の CPU (s)";
    TimeUnit: "time (s)", "時間 (s)";
    CreateRateUnit: "creates per second", "毎秒の作成数";
    StatRateUnit: "stats per second", "毎秒の stat 数";
    ReadRateUnit: "reads per second", "毎秒の読み出し数";
    RemoveRateUnit: "removes per second", "毎秒の削除数";
    OpsTotalUnit: "operations per second, all instances", "全インスタンスの毎秒の操作数";
    OpsPerContainerUnit: "operations per second and instance", "インスタンスあたり毎秒の操作数";
    FairnessUnit: "fairness (Jain's index)", "公平性 (Jain の指数)";
    CopyUpRateUnit: "first writes per second (copy-up)", "毎秒の初回書き込み数（コピーアップ）";
    SteadyRateUnit: "second writes per second (steady)", "毎秒の 2 回目の書き込み数（定常）";
    LoadCopyUp: "each container writes 4 KiB at a random aligned offset to {files} files of one set (1 KB to 4 MB), which it has not changed before (copy-up), then to the same files again (steady); each clock ends when all is durable", "各コンテナが 1 組のファイル（1 KB～4 MB）のうちまだ変更していない {files} 個に 4 KiB ずつ整列した無作為な位置へ書き（コピーアップ）、同じファイルへもう一度書く（定常）。計時は全てが永続化された時に終わる";
    RiskNote: " At risk: which of the changed files a crash may damage, see the table.", " at risk: 変更したファイルのうちクラッシュで壊れうるもの。表を参照。";
    RiskCaption: "Files at risk: which of the files that a container changed a crash may damage", "危険なファイル: コンテナが変更したファイルのうちクラッシュで壊れうるもの";
    RiskAfter: "after a crash", "クラッシュの後";
    RiskSource: "known from", "根拠";
    RiskFiles: "at risk", "危険";
    ContainersCaption: "{workload}: {metric} by containers. Left: all together, until everything is durable, medians with 95 % intervals. Right: boxes of the single containers' own rates (least, quarters, most), until each one's last write returned; J is Jain's index of fairness.", "{workload}: コンテナ数ごとの{metric}。左: 全体、全てが永続化されるまで、中央値と 95 % 区間。右: 各コンテナの速度の箱（最小、四分位、最大）、それぞれ最後の書き込みが返るまで。J は Jain の公平性指数。";
    AllContainers: "all containers together", "全コンテナの合計";
    AxisAllContainers: "all, per second", "合計、毎秒";
    AxisEachContainer: "of each, per second", "各コンテナ、毎秒";

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
    HeldBack: "† The interval is of this comparison alone, which by itself would have another verdict. The verdict counts all comparisons of its figure, of which one may stand out by chance (Holm).", "† 区間はその比較だけのものであり、単独なら別の判定になる。判定は、偶然に目立つものがありうるため、同じ図のすべての比較を数える (Holm)。";
    VerdictSentence: "{comparison}: {workload}, {cell}: {metric} {change}{interval}, n = {n}: {verdict}", "{comparison}: {workload}、{cell}: {metric} {change}{interval}、n = {n}: {verdict}";
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

    // Cards.
    Confidence: "Confidence:", "確信度:";
    Strong: "strong", "高い";
    Moderate: "moderate", "中程度";
    NoAdvice: "no advice", "助言なし";
    NotMeasured: "not measured", "未測定";
    Evidence: "Evidence", "根拠";
    Apply: "Apply:", "適用方法:";
    HoldsFor: "Holds for:", "適用範囲:";
    WouldChange: "Would change it:", "結果を変えうるもの:";
    NotMeasuredClaim: "Not measured: {why}. It needs {needs}.", "未測定: {why}。必要なもの: {needs}。";
    NotMeasuredApply: "tsumugi eval run with an experiment that has {needs}", "次を含む実験で tsumugi eval run を実行する: {needs}";
    Scope: "this machine and storage, {blocks}{workers}, {rounds} rounds{quick}", "このマシンとストレージ、{blocks}{workers}、{rounds} ラウンド{quick}";
    ScopeBlocks: "blocks of {range}, ", "ブロック {range}、";
    ScopeQuick: ", a quick form", "、簡易版";
    RangeOf: "{low} to {high}", "{low} ～ {high}";
    A1Question: "What does remote storage cost against local?", "リモートストレージの代償は、ローカルに比べてどれだけか。";
    A1Needs: "a comparison with role \"remote-local\"", "role が \"remote-local\" の比較";
    A1Change: "another network, another device, larger blocks, more operations under way", "別のネットワーク、別のデバイス、より大きなブロック、より多い同時実行数";
    A2Question: "What does a container cost?", "コンテナの代償はどれだけか。";
    A2Needs: "a comparison with role \"container-native\"", "role が \"container-native\" の比較";
    A2Change: "another runtime, image on another file system, seccomp or cgroup limits", "別のランタイム、別のファイルシステム上のイメージ、seccomp や cgroup の制限";
    A3Question: "Which is the smallest good transfer size?", "十分な性能が出る最小の転送サイズはどれか。";
    A3Needs: "bandwidth at three or more block sizes", "3 種類以上のブロックサイズでの帯域幅";
    A3Change: "more jobs or depth (smaller blocks get good), a longer way (larger ones needed)", "より多いジョブや深さ（小さなブロックで足りる）、より長い経路（大きなブロックが要る）";
    A4Question: "How many operations under way are enough?", "同時実行数はいくつあれば足りるか。";
    A4Needs: "six or more products of jobs and depth, with bandwidth or IOPS", "ジョブ数と深さの積が 6 種類以上での帯域幅または IOPS";
    A4Change: "another device, a longer way, larger blocks, other jobs beside it", "別のデバイス、より長い経路、より大きなブロック、並行する他のジョブ";
    A5Question: "More jobs, or more depth?", "ジョブを増やすか、深さを増やすか。";
    A5Needs: "cells with the same product of jobs and depth", "ジョブ数と深さの積が等しいセル";
    A5Change: "more CPUs, another engine, a device with fewer queues", "より多い CPU、別のエンジン、キューの少ないデバイス";
    A6Question: "What is the limit?", "何が上限を決めているか。";
    A6Needs: "CPU shares of the runs, or a rate of the link", "実行時の CPU 使用率、またはリンクの速度";
    A6Change: "a faster link, device or CPU, more operations under way", "より速いリンク・デバイス・CPU、より多い同時実行数";
    A7Question: "What CPU time does an operation cost?", "1 操作にかかる CPU 時間はどれだけか。";
    A7Needs: "five or more rates that were held (engine \"rate\")", "維持できた 5 種類以上のレート（エンジン \"rate\"）";
    A7Change: "another kernel, driver or transport, larger blocks, other batches", "別のカーネル・ドライバ・トランスポート、より大きなブロック、別のバッチ";
    A8Question: "Which batch is large enough?", "バッチはどの大きさで足りるか。";
    A8Needs: "three or more batch sizes, 1 among them, at a rate that was held (engine \"rate\")", "維持できたレートでの、1 を含む 3 種類以上のバッチサイズ（エンジン \"rate\"）";
    A8Change: "another rate, a device that answers later, cheaper system calls", "別のレート、応答の遅いデバイス、より軽いシステムコール";
    A9Question: "One queue for all cores, or one for each?", "全コアで 1 つのキューか、コアごとのキューか";
    A9Needs: "a comparison with role \"queue\" in a closed loop by three or more numbers of jobs", "閉ループで 3 つ以上のジョブ数による役割 \"queue\" の比較";
    A9Change: "more CPUs, a device that gains by sorting, larger batches, another scheduler", "CPU の増加、並べ替えが効くデバイス、より大きなバッチ、別のスケジューラ";
    A10Question: "One shared file, or a file per rank?", "共有ファイル 1 個か、ランクごとのファイルか。";
    A10Needs: "a comparison with role \"own-shared\"", "role が \"own-shared\" の比較";
    A10Change: "more ranks and nodes, striping, a file system that locks shared files", "より多いランクとノード、ストライピング、共有ファイルをロックするファイルシステム";
    A11Question: "Collective or independent MPI-IO?", "MPI-IO は集団型か独立型か。";
    A11Needs: "a comparison with role \"collective-independent\"", "role が \"collective-independent\" の比較";
    A11Change: "smaller or interleaved records, more nodes, another number of aggregators", "より小さい、または交互に並ぶレコード、より多いノード、別のアグリゲータ数";
    A12Question: "Does the hint pay?", "ヒントは効果があるか。";
    A12Needs: "a comparison with role \"hint\"", "role が \"hint\" の比較";
    A12Change: "another pattern, another MPI-IO, another file system", "別のパターン、別の MPI-IO、別のファイルシステム";
    A13Question: "Over how many devices should a file be striped?", "ファイルは何台のデバイスにストライプすべきか。";
    A13Needs: "levels of IOR that differ in their stripe-count alone", "stripe-count だけが異なる IOR の水準";
    A13Change: "more ranks and nodes, more devices, other transfer sizes", "より多いランクとノード、より多いデバイス、別の転送サイズ";
    A14Question: "Which storage for which pattern?", "どのパターンにどのストレージか。";
    A14Needs: "a comparison with role \"storage\"", "role が \"storage\" の比較";
    A14Change: "another pattern, more ranks, other load on what is shared", "別のパターン、より多いランク、共有部分への他の負荷";
    A15Question: "How many containers at a time?", "同時に何個のコンテナか。";
    A15Needs: "three or more numbers of containers (engine \"copyup\")", "3 種類以上のコンテナ数（エンジン \"copyup\"）";
    A15Change: "a faster disk, more CPUs, larger files, containers that do more than write", "より速いディスク、より多い CPU、より大きいファイル、書き込み以外もするコンテナ";
    A16Question: "Which copy-up, at what durability?", "どのコピーアップを、どの永続性で使うか。";
    A16Needs: "a comparison with role \"copy-up\" (engine \"copyup\")", "role が \"copy-up\" の比較（エンジン \"copyup\"）";
    A16Change: "a disk whose flushes take longer, larger files, more containers", "フラッシュがより遅いディスク、より大きいファイル、より多いコンテナ";
    A17Question: "Is this result to be trusted?", "この結果は信頼できるか。";
    A17Needs: "runs", "実行結果";
    A17Change: "more rounds, longer runs, a quieter machine", "より多いラウンド、より長い実行、より静かなマシン";
    A18Question: "Was anything served from a cache?", "キャッシュから返されたものはあるか。";
    A18Needs: "runs with direct I/O on a device with counters", "カウンタを持つデバイスでのダイレクト I/O の実行";
    A18Change: "direct I/O, a working set of twice the memory, another node", "ダイレクト I/O、メモリの 2 倍の作業領域、別のノード";
    A19Question: "Is it worse than before?", "以前より悪くなっているか。";
    A19Needs: "three or more earlier results of this plan on this machine, see tsumugi eval history", "このマシンでの同じ計画の過去の結果 3 件以上（tsumugi eval history を参照）";
    A19Change: "another day, kernel, version or neighbour: nothing pairs the results", "別の日、カーネル、版、または同居する負荷。結果どうしは対になっていない";
    A20Question: "May one number be quoted?", "1 つの数値で示してよいか。";
    A20Needs: "three or more runs of a cell", "1 つのセルの 3 回以上の実行";
    A20Change: "longer runs, more rounds, a quieter machine", "より長い実行、より多いラウンド、より静かなマシン";

    // Method, environment, data, commands.
    MethodText: "Each round runs every cell under every condition once: the cells in random order, the conditions of a cell one right after the other in random order, with the same offsets. The first {warm_up} rounds warm up and are not counted. Ratios are paired by round; intervals are Student's on their logarithms. Equivalent: the 90 % interval lies within the margin (two one-sided tests); different: no difference is excluded at 95 %, by mean and median; matters: so is everything within the margin. Margins: ± {throughput} % of bandwidth and IOPS, ± {latency} % of latency. A run takes {run} after {ramp} of ramp.", "各ラウンドで、すべてのセルをすべての条件で 1 回ずつ実行する。セルの順は無作為で、1 つのセルの各条件は無作為な順で続けて、同じオフセットで実行する。最初の {warm_up} ラウンドは慣らしであり数えない。比はラウンドごとに対にし、区間はその対数のスチューデント区間である。同等: 90 % 区間が許容幅の中にある（片側検定 2 回）。差あり: 差がないことが、平均でも中央値でも 95 % で否定される。重要: 許容幅の内側もすべて否定される。許容幅: 帯域幅と IOPS は ± {throughput} %、レイテンシは ± {latency} %。1 回の実行は {ramp} の助走の後 {run}。";
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

    // Pages of the site.
    Experiments: "Experiments", "実験";
    AllExperiments: "All experiments", "実験の一覧";
    NoExperiments: "There are no results here: run an experiment with tsumugi eval run, or name another directory.", "ここに結果はない。tsumugi eval run で実験を実行するか、別のディレクトリを指定する。";
    MoreExperiments: "There are more than are shown: name a directory below.", "表示しきれない実験がある。下位のディレクトリを指定すること。";
    ColumnExperiment: "experiment", "実験名";
    ColumnState: "state", "状態";
    ColumnRounds: "rounds", "ラウンド";
    ColumnDecided: "decided", "決着";
    ColumnPlace: "place", "場所";
    QuickMark: " (quick form)", "（簡易版）";
    StateRunning: "It is running.", "実行中。";
    StateKilled: "Its process was killed; what was measured is kept, and --resume goes on.", "プロセスが強制終了した。測定済みの結果は残っており、--resume で続行できる。";
    StateUnfinished: "not ended", "未完了";
    ReportSoFar: "It is running: this is the report so far. See how far it is.", "実行中であり、これは現時点の報告である。進み具合を見る。";
    RefreshedEvery: "This page comes anew every {seconds} s.", "このページは {seconds} 秒ごとに更新される。";
    Preparing: "Conditions are being prepared.", "条件を準備している。";
    VerdictsSoFar: "Verdicts so far", "現時点の判定";
    WholeReport: "The whole report so far", "現時点の報告全体";
    WarmingUp: "warming up", "慣らし";
    RoundOf: "round {round}", "ラウンド {round}";
    ProgressOf: "{round}: {done} of {total} runs until the next look at the verdicts, about {left} left", "{round}: 次の判定までの {total} 回中 {done} 回を実行済み、残り約 {left}";
    RunsNow: "Now: {what} (for {since})", "実行中: {what}（開始から {since}）";
    Files: "Files:", "ファイル:";
    CannotShow: "This cannot be shown", "表示できない";

    // Several studies in one report.
    Studies: "Studies", "調査の一覧";
    StudiesDone: "{done} of {all} studies were run to their end, in {time}; {decided} of {comparisons} comparisons are decided.", "{all} 件の調査のうち {done} 件を最後まで実行した（{time}）。{comparisons} 件の比較のうち {decided} 件が決着した。";
    ColumnStudy: "study", "調査";
    ColumnReport: "report", "報告";
    StudyReport: "The study's own report", "この調査の報告";
    StudyNotBegun: "Not begun.", "未着手。";
    StudyUnfinished: "Not ended.", "未完了。";
    StudyFailed: "Failed: {reason}.", "失敗: {reason}。";
    StudyEnded: "{rounds} rounds in {time}; it ended because: {ending}.", "{rounds} ラウンド、{time}。終了の理由: {ending}。";
    RunsFailed: "{condition}: {count} runs failed", "{condition}: {count} 回の実行が失敗";
    NothingLacks: "All that it asks for was there.", "必要なものはすべてあった。";
    Unanswered: "Not measured by any of these studies", "どの調査でも測定していないこと";
    UnansweredNeeds: "{question} It needs {needs}.", "{question} 必要なもの: {needs}。";
    Machine: "Machine", "マシン";

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
    MarkHints: "a hint was not taken", "ヒントが受け入れられていない";
    MarkSteadinessUnknown: "too short to see whether it settled", "短すぎて定常か判断できない";
    MarkOtherLoad: "other load on the CPUs", "CPU に他の負荷";
    MarkSteal: "CPU time stolen by the hypervisor", "ハイパーバイザに奪われた CPU 時間";
    MarkOtherTraffic: "other traffic on the device", "デバイスに他の通信";
    MarkLittle: "rate × latency is not what was under way", "レート × レイテンシが同時実行数と合わない";
    MarkSaturated: "the rate was not reached", "指定レートに達していない";

    // Charts.
    AxisBlockSize: "block size", "ブロックサイズ";
    AxisDepth: "operations under way per job", "ジョブあたりの同時実行数";
    AxisRate: "IOPS that were asked for", "要求した IOPS";
    AxisBatch: "operations per submission", "1 回の投入あたりの操作数";
    AxisChangeOf: "change of {metric} (%)", "{metric}の変化 (%)";
    AxisForest: "change from the baseline, with 95 % interval (grey: does not matter)", "基準からの変化と 95 % 区間（灰色: 問題にならない範囲）";
    ForestRow: "{comparison}: {workload} {cell}, {metric}", "{comparison}: {workload} {cell}、{metric}";
    ForestCaption: "All ratios after {rounds} rounds. Point: geometric mean of the paired ratios; line: 95 % t-interval{widened}; verdicts are adjusted for the number of cells per figure (Holm).{beyond}", "{rounds} ラウンド後のすべての比。点: 対の比の幾何平均、線: 95 % t 区間{widened}。判定は図ごとのセル数について補正した (Holm)。{beyond}";
    ForestWidened: ", widened for {looks} looks", "（{looks} 回の中間判定の分だけ広い）";
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
}
