# Checks for the scripts of this directory, which source this file (dash and bash).
# Each check prints one line, "ok NAME" or "FAILED NAME" with what the command said below it;
# tests/kernel/run counts these lines.

checks_failed=0
check_output=$(mktemp)

# The end of what the last command said, below its line.
show_output() {
    tail -n 30 "$check_output" | sed 's/^/        | /'
}

# check NAME COMMAND...: the command has to succeed.
check() {
    check_name=$1
    shift
    if "$@" >"$check_output" 2>&1; then
        echo "ok      $check_name"
    else
        echo "FAILED  $check_name: $* (exit status $?)"
        show_output
        checks_failed=$((checks_failed + 1))
        return 1
    fi
}

# check_refused NAME COMMAND...: the command has to fail.
check_refused() {
    check_name=$1
    shift
    if "$@" >"$check_output" 2>&1; then
        echo "FAILED  $check_name: $* succeeded"
        show_output
        checks_failed=$((checks_failed + 1))
        return 1
    fi
    echo "ok      $check_name"
}

# need NAME COMMAND...: as check, but the script ends when it fails: the rest builds on it.
need() {
    check "$@" || exit 1
}

# says PATTERN COMMAND...: the command succeeds and prints a line that matches.
says() {
    says_pattern=$1
    shift
    says_text=$("$@" 2>&1)
    says_status=$?
    printf '%s\n' "$says_text"
    [ $says_status = 0 ] && printf '%s\n' "$says_text" | grep -q -e "$says_pattern" ||
        { echo "(expected: $says_pattern)"; return 1; }
}

# equal A B: both texts are the same and not empty.
equal() {
    echo "'$1' and '$2'"
    [ -n "$1" ] && [ "$1" = "$2" ]
}

# wait_until COMMAND...: tries for five minutes, as emulated kernels are slow, more so on a busy machine.
wait_until() {
    wait_tries=3000
    until "$@"; do
        wait_tries=$((wait_tries - 1))
        [ $wait_tries -gt 0 ] || return 1
        sleep 0.1
    done
}

# finish: ends the script with the status that the checks make.
finish() {
    rm -f "$check_output"
    exit $((checks_failed > 0))
}
