#!/bin/sh
# A client in sh and redis-cli: it sends, receives and settles. Written from docs/protocol.md; redis-cli 6 or later.
#
#   client.sh send QUEUE BODY                      prints the message id; DELAY_MS, TTL_MS
#   client.sh receive QUEUE                        prints a receipt, then the body; exit code 3 if the queue is empty
#   client.sh ack QUEUE RECEIPT                    exit code 3 if the lease has run out
#   client.sh nack QUEUE RECEIPT [DELAY_MS [ERROR]]
#   client.sh work QUEUE COMMAND [ARGUMENT …]      pipes each body to a command: exit code 0 acks it
#
# Environment: REDIS_CLI='redis-cli -h redis.example.org', NAMESPACE, and VISIBILITY_MS, how long a lease lasts. A body
# is an argument of redis-cli: at most 128 KiB, without zero bytes.
set -eu

REDIS_CLI=${REDIS_CLI:-redis-cli}
NAMESPACE=${NAMESPACE:-default}
VISIBILITY_MS=${VISIBILITY_MS:-30000}
SCRIPTS=${SCRIPTS:-$(dirname "$0")/../../docs/scripts}
WHO=$(hostname):$$
LC_ALL=C
export LC_ALL

TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    printf '%s\n' "client.sh: $*" >&2
    exit 1
}

random() {
    od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'
}

cli() {
    # The words of REDIS_CLI are a command and its options.
    # shellcheck disable=SC2086
    $REDIS_CLI --raw "$@"
}

load() {
    cli -x SCRIPT LOAD < "$SCRIPTS/$1.lua" > "$TMP/$1.sha"
}

# Call a script: its name, then the number of keys, keys and arguments. The reply goes to $TMP/<name>. A call whose
# reply is lost is repeated unchanged: every call here may be repeated.
script() {
    name=$1
    shift
    tries=0
    [ -s "$TMP/$name.sha" ] || load "$name" || rm -f "$TMP/$name.sha"
    until cli EVALSHA "$(cat "$TMP/$name.sha")" "$@" > "$TMP/$name" && [ "$(head -c 8 "$TMP/$name")" != NOSCRIPT ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 10 ] || fail "$name: $(head -n 1 "$TMP/$name")"
        [ "$tries" = 1 ] || sleep 1
        load "$name" || : # The server was restarted or replaced.
    done
}

# The keys of every script of consumers; the leases of the call follow.
use() {
    Q="$NAMESPACE:{$1}"
    KEYS="$Q:ready $Q:ready:1 $Q:ready:2 $Q:ready:3 $Q:ready:4 $Q:ready:5 $Q:ready:6 $Q:ready:7 $Q:ready:8 $Q:ready:9
$Q:suspect $Q:delayed $Q:unacked $Q:wake $Q:dead $Q:meta $Q:stats $Q:unique $Q:cancelled $Q:journal"
}

# Each send has its own lane, so a repetition is answered DUPLICATE and not stored twice.
send() {
    id=$(random 10)
    script send 8 "$Q:ready" "$Q:delayed" "$Q:wake" "$Q:meta" "$Q:stats" "$Q:producers" "$Q:unique" "$Q:journal" \
        '' "$(random 12)" 1 "${DELAY_MS:-}" "${TTL_MS:-}" 0 1 "q1 $id " "
$1" 0
    case $(head -n 1 "$TMP/send") in
    OK | DUPLICATE) ;;
    *) fail "not sent: $(tr '\n' ' ' < "$TMP/send")" ;;
    esac
    cli HSETNX "$NAMESPACE:queues" "$QUEUE" 1 > "$TMP/registry"
    printf '%s\n' "$id"
}

# Receive one message: its lease into $LEASE, its header into $HEADER, its body into $TMP/body. Returns 3 if there is none.
receive() {
    LEASE=$(random 12)
    resume=0
    while :; do
        # shellcheck disable=SC2086
        script settle_receive 21 $KEYS "$Q:lease:$LEASE" '' "$resume" 1 "$VISIBILITY_MS" 1 "$WHO" 0
        case $(head -n 1 "$TMP/settle_receive") in
        OK) break ;;
        LEASEUSED) resume=1 ;; # Our own call was already carried out: ask for its result.
        *) fail "not received: $(tr '\n' ' ' < "$TMP/settle_receive")" ;;
        esac
    done
    # Eight lines precede the message, three follow it; without a message its line is empty.
    awk 'NR > 11 { print kept[NR % 3] } { kept[NR % 3] = $0 }' "$TMP/settle_receive" > "$TMP/item"
    HEADER=$(head -n 1 "$TMP/item")
    case $HEADER in
    '') return 3 ;;
    'q1 '*) sed 1d "$TMP/item" > "$TMP/body" ;;
    '{'* | '['*) # A plain message, without a header.
        cat "$TMP/item" > "$TMP/body"
        HEADER=
        ;;
    *) # Foreign: no consumer can take it.
        settle 0 0 1 b 0 foreign '' '' '' '' ''
        receive
        ;;
    esac
}

# Move a message with its own visibility to its own lease. `work` extends its lease anyway.
split() {
    own=${HEADER##* v=}
    own=${own%% *}
    case $own in '' | 0 | *[!0-9]*) return ;; esac
    new=$(random 12)
    script split 4 "$Q:unacked" "$Q:meta" "$Q:lease:$LEASE" "$Q:lease:$new" '' 0 "$own"
    [ "$(sed -n 3p "$TMP/split")" = 0 ] || LEASE=$new
}

# Settle the message in $LEASE; returns 3 if the outcome did not count.
settle() {
    # shellcheck disable=SC2086
    script settle 21 $KEYS "$Q:lease:$LEASE" '' "$WHO" 1 "$@" 0
    [ "$(head -n 1 "$TMP/settle")" = OK ] || fail "not settled: $(tr '\n' ' ' < "$TMP/settle")"
    [ "$(tail -n 1 "$TMP/settle")" = 1 ] || return 3
}

# `<lease>`, or `<lease>:<message id>:<unique key>` if the message holds a key; the key is encoded as in the header.
receipt() {
    unique=${HEADER##* u=}
    if [ "$unique" = "$HEADER" ]; then
        printf '%s\n' "$LEASE"
    else
        rest=${HEADER#q1 }
        printf '%s\n' "$LEASE:${rest%% *}:${unique%% *}"
    fi
}

percent_decoded() {
    printf '%s' "$1" | awk '
        BEGIN { for (i = 0; i < 256; i++) letter[sprintf("%02X", i)] = sprintf("%c", i) }
        { while (at = index($0, "%")) {
            printf "%s%s", substr($0, 1, at - 1), letter[toupper(substr($0, at + 1, 2))]
            $0 = substr($0, at + 3)
        } printf "%s", $0 }'
    printf x # Else the shell would strip trailing newlines.
}

ack() {
    LEASE=${1%%:*}
    case $1 in
    *:*)
        rest=${1#*:}
        key=$(percent_decoded "${rest#*:}")
        settle 0 1 0 "${key%x}" "${rest%%:*}" 0
        ;;
    *) settle 1 0 0 0 ;;
    esac
}

nack() {
    LEASE=${1%%:*}
    settle 0 0 1 n 0 "${2:-0}" '' '' '' "${3:-}" ''
}

# Extend the held lease while this process lives. A lease that is gone stays gone.
keep() {
    while sleep "$((VISIBILITY_MS / 3000))" && kill -0 $$; do
        [ ! -s "$TMP/held" ] || script extend 2 "$Q:unacked" "$Q:meta" '' "$VISIBILITY_MS" "$(cat "$TMP/held")"
    done > /dev/null 2>&1
}

work() {
    [ "$VISIBILITY_MS" -ge 3000 ] || fail "VISIBILITY_MS must be 3000 or more: the lease is extended every third of it"
    keep &
    keeper=$!
    ending=
    trap 'ending=1' INT TERM
    while [ -z "$ending" ]; do
        if ! receive; then
            cli BLPOP "$Q:wake" 2 > "$TMP/wake" || sleep 1
            continue
        fi
        printf '%s' "$LEASE" > "$TMP/held"
        code=0
        "$@" < "$TMP/body" || code=$?
        : > "$TMP/held"
        if [ "$code" = 0 ]; then
            ack "$(receipt)" || printf '%s\n' "client.sh: the lease of $HEADER had run out" >&2
        else
            nack "$LEASE" 1000 "$1 ended with exit code $code" || :
        fi
    done
    kill "$keeper" || :
}

[ $# -ge 2 ] || fail "give a command (send, receive, ack, nack or work) and a queue"
verb=$1 QUEUE=$2
shift 2
use "$QUEUE"
case $verb in
send) send "${1?a body}" ;;
receive)
    receive
    split
    receipt
    cat "$TMP/body"
    ;;
ack) ack "${1?a receipt}" ;;
nack) nack "$@" ;;
work) work "${@:?a command}" ;;
*) fail "no such command: $verb" ;;
esac
