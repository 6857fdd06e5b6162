//! Lines of the table of messages: pages of the site, and several studies in one.

/// Adds its lines to those before them, for the macro that comes next.
macro_rules! pages {
    ($next:ident $($later:ident)*: $($lines:tt)*) => { $next! { $($later)*: $($lines)*

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
    StateWaiting: "It waits for its turn.", "順番を待っている。";
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
    } };
}
