//! Lines of the table of messages: metrics, in a sentence and with their units.

/// Adds its lines to those before them, for the macro that comes next.
macro_rules! metrics {
    ($next:ident $($later:ident)*: $($lines:tt)*) => { $next! { $($later)*: $($lines)*

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

    // Metrics with their units; metrics without a unit are above.
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
    } };
}
