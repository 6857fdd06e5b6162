//! Lines of the table of messages: what makes load, what it does, and what a crash does to its files.

/// Adds its lines to those before them, for the macro that comes next.
macro_rules! loads {
    ($next:ident $($later:ident)*: $($lines:tt)*) => { $next! { $($later)*: $($lines)*

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
    LoadCopyUp: "each container writes 4 KiB at a random aligned offset to {files} files of one set (1 KB to 4 MB), which it has not changed before (copy-up), then to the same files again (steady); each clock ends when all is durable", "各コンテナが 1 組のファイル（1 KB～4 MB）のうちまだ変更していない {files} 個に 4 KiB ずつ整列した無作為な位置へ書き（コピーアップ）、同じファイルへもう一度書く（定常）。計時は全てが永続化された時に終わる";

    // Which files a crash may damage.
    RiskNote: " At risk: which of the changed files a crash may damage, see the table.", " at risk: 変更したファイルのうちクラッシュで壊れうるもの。表を参照。";
    RiskCaption: "Files at risk: which of the files that a container changed a crash may damage", "危険なファイル: コンテナが変更したファイルのうちクラッシュで壊れうるもの";
    RiskAfter: "after a crash", "クラッシュの後";
    RiskSource: "known from", "根拠";
    RiskFiles: "at risk", "危険";

    // What is there after a crash, by the way that changes are copied.
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
