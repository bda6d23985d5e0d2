#!/usr/bin/env bash
# Builds the clients with Maven (which downloads what it has not got), starts the server of ../control_functions on a
# free port, runs both against it and stops the server. Ends with status 0 only where every reply was right.
#
#     examples/java/run.sh [COUNT [PYTHON]]
#
# COUNT calls of each kind (100000). PYTHON has rpcstream installed; without it, $PYTHON or python3 is taken.
set -euo pipefail
count=${1:-100000}
python=${2:-${PYTHON:-python3}}
python=$(command -v "$python") || { echo "run.sh: there is no ${2:-${PYTHON:-python3}}" >&2; exit 1; }
[ "${python#/}" != "$python" ] || python=$PWD/$python
cd "$(dirname "$0")"
for tool in mvn java mkfifo; do
    command -v "$tool" >/dev/null || { echo "run.sh: there is no $tool" >&2; exit 1; }
done

work=$(mktemp -d)
server=
stop() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mvn --batch-mode --quiet process-classes </dev/null

# The server prints where it listens; reading from the pipe waits until it does.
mkfifo "$work/banner"
(cd ../control_functions && exec "$python" -m rpcstream.cli.serve -f controlFunctions -p 0) >"$work/banner" &
server=$!
exec 3<"$work/banner"
IFS= read -r line <&3 || { echo "run.sh: the server did not start" >&2; exit 1; }
address=${line#jsonrpc2://}

for program in PlainSimulation Jsonrpc2BaseSimulation; do
    echo "$program"
    java -cp "target/classes:target/dependency/*" "rpcstream.simulation.$program" "$count" "$address"
done
