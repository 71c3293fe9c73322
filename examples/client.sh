#!/bin/sh
# A client of Sandkeep in POSIX shell: an image of a directory, a sandbox, a command, a process that is followed.
#
#     examples/client.sh [DIRECTORY]
#
# It needs one of socat, OpenBSD's nc and curl to reach a Unix socket; VIA says which, otherwise it takes the first there is.
# Answers are taken apart with sed: ids and base64 hold nothing that JSON would escape. For more than that, use jq.
set -eu

directory=$(cd "${1:-.}" && pwd)
if [ "$(id -u)" = 0 ]; then default=/run/sandkeep; else default=${XDG_RUNTIME_DIR:-$HOME/.local/state}/sandkeep; fi
socket=${SANDKEEP_SOCKET:-$default/sandkeep.sock}

die() { printf '%s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
nc_knows_unix() { have nc && nc -h 2>&1 | grep -q -e '-[A-Za-z]*U'; }

# -- one connection for all calls: fd 3 is what we say, fd 4 what we hear -------------------------------------------------

choose() {
    if have socat; then echo socat; elif nc_knows_unix; then echo nc; elif have curl; then echo curl; fi
}

reach() {
    case $1 in
        socat) exec socat - "UNIX-CONNECT:$socket" ;;
        nc) exec nc -U "$socket" ;;
        curl) exec curl --silent --no-buffer --upload-file . --unix-socket "$socket" telnet://localhost 2>/dev/null ;; # bytes both ways
        *) die "install socat, netcat-openbsd or curl" ;;
    esac
}

trap '' PIPE # a daemon that has gone is told of, not died of
pipes=$(mktemp -d)
mkfifo "$pipes/to" "$pipes/from"
reach "${VIA:-$(choose)}" <"$pipes/to" >"$pipes/from" &
connection=$!
exec 3>"$pipes/to" 4<"$pipes/from"
rm -r "$pipes"

# -- calls ----------------------------------------------------------------------------------------------------------------

last_id=0

# call METHOD PARAMS: the answer is in $answer. Whatever is not the answer to this call, such as progress, is passed over.
call() {
    last_id=$((last_id + 1))
    printf '{"jsonrpc":"2.0","id":%d,"method":"%s","params":%s}\n' "$last_id" "$1" "$2" 2>/dev/null >&3 ||
        die "$1: nobody listens on $socket"
    while IFS= read -r answer <&4; do
        case $answer in
            *'"error":{'*) die "$1: $(text message) [$(text code)]" ;;
            *"\"id\":$last_id,"*) return 0 ;;
        esac
    done
    die "$1: nobody answers on $socket"
}

text() { printf %s "$answer" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
number() { printf %s "$answer" | sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p"; }
bytes() { text "$1" | base64 -d; }
quoted() { printf '"%s"' "$(printf %s "$1" | sed 's/[\\"]/\\&/g')"; } # any text without control characters

# -- the work -------------------------------------------------------------------------------------------------------------

image='' sandbox=''
clean_up() {
    [ -z "$sandbox" ] || call sandbox.terminate "{\"sandbox_id\":\"$sandbox\"}"
    [ -z "$image" ] || call image.remove "{\"image_id\":\"$image\"}"
    kill "$connection" 2>/dev/null || true
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

call rpc.hello '{"client":"client.sh"}'

# A change that has a command_id is made once: asked for again, after a cut connection say, it gives the first answer.
call image.create "{\"source\":$(quoted "$directory"),\"clean\":true,\"command_id\":\"client-sh-$$-$(date +%s)\"}"
image=$(text image_id)
call sandbox.create "{\"image_id\":\"$image\",\"labels\":{\"made-by\":\"client.sh\"}}"
sandbox=$(text sandbox_id)
echo "sandbox $sandbox"

call sandbox.exec "{\"sandbox_id\":\"$sandbox\",\"command\":[\"sh\",\"-c\",\"echo from inside; exit 3\"]}"
bytes stdout
echo "it exited with $(number exit_code)"

call process.launch "{\"sandbox_id\":\"$sandbox\",\"name\":\"counter\",\"command\":\"for i in 1 2 3; do echo \$i; sleep 0.1; done\"}"
out=0 err=0
while :; do # each read waits up to 30 seconds for something new
    call process.read "{\"sandbox_id\":\"$sandbox\",\"name\":\"counter\",\"stdout_offset\":$out,\"stderr_offset\":$err,\"wait_s\":30}"
    bytes stdout
    bytes stderr >&2
    out=$(number next_stdout_offset) err=$(number next_stderr_offset)
    case $answer in *'"ended":true'*) break ;; esac
done
echo "counter exited with $(number exit_code)"
