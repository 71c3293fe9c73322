#!/bin/sh
# The whole life of a session, by curl.   life.sh SOCKET KEY IMAGE DIRECTORY
set -eu
socket=$1 key=$2 image=$3
cd "$4"
api=http://localhost/api/sandbox/sessions

# Prints the status of a request; headers go to `head`, the body to `body`.
ask() {
	curl --silent --show-error --unix-socket "$socket" -H "X-Api-Key: $key" -D head -o body -w '%{http_code}' "$@"
}

# want STATUS TEXT ARGUMENT...: the request is answered with that status, and the text is in the body.
want() {
	status=$1 text=$2
	shift 2
	got=$(ask "$@")
	if [ "$got" != "$status" ] || ! grep -q -- "$text" body; then
		echo "$*: $got instead of $status with $text" >&2
		cat head body >&2
		exit 1
	fi
}

want 404 '"code":"not_found"' "$api/life/"
want 201 '"status":"ready"' "$api/" -d "{\"id\":\"life\",\"image\":\"$image\",\"memory\":\"64Mi\"}"
grep -qi '^location: /api/sandbox/sessions/life/' head
want 200 '"memory":"64Mi"' "$api/" -d '{"id":"life"}'
want 200 '"id":"life"' "$api/life" # without the slash
want 200 '"stdout":"hello\\n"' "$api/life/exec/" -d '{"command":["echo","hello"]}'
want 200 '"exit_code":7' "$api/life/shell/" -d '{"command":"exit 7"}'
want 200 '"size_bytes":5' "$api/life/upload/" -d '{"path":"notes/a","content":"small"}'

head -c 20000000 /dev/urandom >large
want 200 '"size_bytes":20000000' "$api/life/files/upload/?path=large" --data-binary @large
want 200 '' "$api/life/files/content/?path=large&filename=copy"
cmp large body
grep -qi '^content-disposition: attachment; filename="copy"' head
want 200 '"size_bytes":20000000' "$api/life/files/upload/?path=large" --data-binary @large \
	-H 'Transfer-Encoding: chunked'

want 201 '"label":"before"' "$api/life/snapshot/" -d '{"label":"before"}'
snapshot=$(sed 's/.*"id":"\([^"]*\)".*/\1/' body)
want 200 '"exit_code":0' "$api/life/exec/" -d '{"command":"rm notes/a; echo kept >b"}'
want 200 "$snapshot" "$api/life/snapshots/"
want 201 '"filename":"large"' "$api/life/files/export/" -d '{"path":"large"}'
artifact=$(sed 's/.*"content_url":"\([^"]*\)".*/\1/' body)
want 200 '' "http://localhost$artifact"
cmp large body
want 200 "$artifact" "$api/life/artifacts/"
want 200 '"last_heartbeat_at":"2' -X POST "$api/life/heartbeat/"
want 200 '"command":\["sandkeep","shell"' "$api/life/debug-connection/"
want 501 '"code":"not_supported"' "$api/life/stream/view/"

[ "$(ask -X POST "$api/life/stop/")" = 204 ]
want 200 '"status":"terminated"' "$api/life/"
want 200 '"stdout":"kept\\n"' "$api/life/exec/" -d '{"command":"cat b"}' # it comes back
want 201 "\"restore_snapshot_id\":\"$snapshot\"" "$api/" \
	-d "{\"id\":\"again\",\"image\":\"$image\",\"restore_snapshot_id\":\"$snapshot\"}"
want 200 '"stdout":"small"' "$api/again/exec/" -d '{"command":"cat notes/a"}'
want 404 '"code":"not_found"' "$api/" -d '{"id":"more","restore_snapshot_id":"snp_none"}'
[ "$(ask -X DELETE "$api/again/")" = 204 ]
[ "$(ask -X DELETE "$api/life/")" = 204 ]
want 200 '^\[\]$' "$api/?all=false"
echo lived
