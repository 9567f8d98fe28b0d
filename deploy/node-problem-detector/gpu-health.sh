#!/bin/bash
# A custom plugin of node-problem-detector: how the GPUs of the node are, by mig-exporter's
# /api/v1/health. It takes no device away.
#
# The image of node-problem-detector (Debian with bash) has neither curl nor jq. This calls nothing
# but bash, which speaks HTTP by /dev/tcp, and timeout and head of coreutils. So it can ask without
# TLS and without a password alone.
#
# usage: gpu-health.sh [HOST:PORT], by default localhost:9401. localhost is the node's with
# hostNetwork; in a pod's own network give the address of the node, or the exporter's Service with
# internalTrafficPolicy: Local.
#
# exit codes: 0 no GPU is unhealthy (degraded ones work), 1 a GPU is, 2 unknown.
set -u

address=${1:-localhost:9401}

# An old HTTP version, so that the answer comes in one piece and ends with the connection.
# shellcheck disable=SC2016 # the second bash expands it
ask='exec 3<>"/dev/tcp/$1/$2" || exit
printf "GET /api/v1/health HTTP/1.0\r\nHost: %s\r\nUser-Agent: node-problem-detector\r\n\r\n" "$1" >&3
exec head -c 16384 <&3'

if ! answer=$(timeout 4 "$BASH" -c "$ask" ask "${address%:*}" "${address##*:}" 2>/dev/null) || [ -z "$answer" ]; then
	echo "mig-exporter does not answer at $address"
	exit 2
fi

status=${answer%%$'\n'*}
case $status in
"HTTP/1."?" 200"*) ;;
*)
	echo "mig-exporter answers at $address: ${status%$'\r'}"
	exit 2
	;;
esac

# The first keys of the document are the node's.
first='"apiVersion":"mig-exporter/v1","state":"([a-z]+)","action":"([a-z]+)","message":"(([^"\\]|\\.)*)"'
if ! [[ $answer =~ $first ]]; then
	echo "mig-exporter's answer at $address is not known to this script"
	exit 2
fi

state=${BASH_REMATCH[1]}
echo "$state, to do: ${BASH_REMATCH[2]}: ${BASH_REMATCH[3]}"

case $state in
healthy | degraded) exit 0 ;;
unhealthy) exit 1 ;;
*) exit 2 ;;
esac
