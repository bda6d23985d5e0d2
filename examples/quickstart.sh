#!/usr/bin/env bash
# Starts the server of vectorize.py on a free port, calls it with a photo through the command line, prints the array
# and stops the server.
#
#     examples/quickstart.sh [PYTHON]
#
# PYTHON has rpcstream installed; without it, $PYTHON or python3 is taken.
set -euo pipefail
python=${1:-${PYTHON:-python3}}
python=$(command -v "$python") || { echo "quickstart: there is no ${1:-${PYTHON:-python3}}" >&2; exit 1; }
[ "${python#/}" != "$python" ] || python=$PWD/$python
cd "$(dirname "$0")/.."

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

# The server prints where it listens; reading from the pipe waits until it does.
mkfifo "$work/banner"
echo '$ rpcstream-server examples/vectorize.py --port 0'
"$python" -m rpcstream.cli.serve examples/vectorize.py --port 0 >"$work/banner" &
server=$!
exec 3<"$work/banner"
IFS= read -r line <&3 || { echo "quickstart: the server did not start" >&2; exit 1; }
echo "$line"
address=${line##* }

call=(vectorize description="a tabby cat looks aside" -i photo=examples/pictures/cat.jpg)
echo "$ rpcstream vectorize description=\"a tabby cat looks aside\" -i photo=examples/pictures/cat.jpg -o vector.npy"
"$python" -m rpcstream "${call[@]}" --uri "$address" -o "$work/vector.npy"
echo "$ python -c 'import numpy; v = numpy.load(\"vector.npy\"); print(v.dtype, v.shape); print(v)'"
"$python" -c 'import numpy, sys; v = numpy.load(sys.argv[1]); print(v.dtype, v.shape); print(v)' "$work/vector.npy"
