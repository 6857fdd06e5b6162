//! Lines of the table of messages: loads, and the damage of a crash to their files. The texts of an engine
//! are in the engine.

/// Adds its lines to those before them, for the macro that comes next.
macro_rules! loads {
    ($next:ident $($later:ident)*: $($lines:tt)*) => { $next! { $($later)*: $($lines)*

    // Nouns for loads, singular.
    Job: "job", "ジョブ";
    Rank: "rank", "ランク";
    Instance: "instance", "インスタンス";
    Process: "process", "プロセス";
    Container: "container", "コンテナ";

    // Points of a plan.
    CellDepth: ", depth {depth}", "、深さ {depth}";
    CellRate: ", {rate} IOPS", "、{rate} IOPS";
    CellBatch: ", batches of {batch}", "、バッチ {batch}";

    // Files that a crash may damage.
    RiskNote: " At risk: which of the changed files a crash may damage, see the table.", " at risk: 変更したファイルのうちクラッシュで壊れうるもの。表を参照。";
    RiskCaption: "Files at risk: which of the files that a container changed a crash may damage", "危険なファイル: コンテナが変更したファイルのうちクラッシュで壊れうるもの";
    RiskAfter: "after a crash", "クラッシュの後";
    RiskSource: "known from", "根拠";
    RiskFiles: "at risk", "危険";

    // The files after a crash, by the kind of copy.
    AfterOverlay: "complete; a change that was not synced may be missing", "完全。同期していない変更は失われることがある";
    AfterVolatile: "zeros in files of the right size; the kernel refuses to mount it again", "サイズは正しいが中身がゼロのファイル。カーネルは再マウントを拒否する";
    AfterReflink: "complete, or the original: a clone is a record of the log of xfs", "完全、または元のまま。クローンは xfs のログの 1 レコードである";
    AfterFuse: "empty files that hide the intact originals (versions 1.10 and 2.0)", "無傷の元ファイルを隠す空のファイル（版 1.10 と 2.0）";
    AfterUnion: "the original, or the changed file, complete", "元のファイル、または変更後のファイルが完全に残る";
    AfterBtrfs: "the original, or the changed file, complete: btrfs writes elsewhere", "元のまま、または変更後のファイル。どちらも完全。btrfs は別の場所に書く";
    AfterThin: "the original, or the changed file, complete: blocks are written over, not files", "元のまま、または変更後のファイル。どちらも完全。ファイルではなくブロックを上書きする";
    AfterBatches: "49 of 50: all but the synced one are empty and hide the original", "50 個中 49 個: 同期した 1 個以外は空で、元のファイルを隠す";
    } };
}
