#!/usr/bin/env bash
# Two simulated nodes, a Prometheus that scrapes them with the rules of deploy/prometheus, and Grafana with the dashboards, until Ctrl-C.
# One of the nodes has eight days behind it, so that right-sizing has its answers at once. Prometheus and Grafana are used if they are
# installed; what is missing is named. Nothing outside a temporary folder is changed.
set -euo pipefail
cd "$(dirname "$0")/.."

program=${MIG_EXPORTER:-bin/mig-exporter}
dir=$(mktemp -d "${TMPDIR:-/tmp}/mig-exporter-demo.XXXXXX")
pids=()
# kill_all SIGNAL ends what was started. Each program has a process group of its own, but for the moment before setsid.
kill_all() {
	local pid
	for pid in $(jobs -p); do
		kill "-$1" -- "-$pid" 2>/dev/null || kill "-$1" "$pid" 2>/dev/null || true
	done
}
stop() {
	trap '' INT TERM # a second Ctrl-C would leave files behind
	trap - EXIT
	kill_all TERM
	for _ in $(seq 100); do
		[ -n "$(jobs -pr)" ] || break
		sleep 0.1
	done
	kill_all KILL
	wait
	rm -rf "$dir"
}
trap stop EXIT
trap 'trap "" INT TERM; exit 0' INT TERM

say() { printf 'make demo: %s\n' "$*"; }

# start NAME COMMAND... runs a program with its output in a log, out of reach of Ctrl-C: stop ends it, once.
start() {
	local name=$1
	shift
	: >"$dir/$name.log" # wait_for may read it before the program is started
	setsid "$@" >"$dir/$name.log" 2>&1 &
	pids+=($!)
}

# wait_for NAME PATTERN waits until a log has a line that matches, and prints what the first group of the pattern matched. It fails with
# the end of the log if the program ends before.
wait_for() {
	local name=$1 pattern=$2 pid=${pids[-1]} found
	for _ in $(seq 300); do
		found=$(sed -nE "s/.*$pattern.*/\1/p" "$dir/$name.log" | head -n 1)
		[ -z "$found" ] || { echo "$found"; return; }
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.1
	done
	say "$name does not start; its log ends with:" >&2
	tail -n 5 "$dir/$name.log" >&2
	return 1
}

# write_history ADDRESS FROM SECONDS lets a stepped clock pass from a time in Unix seconds on, and prints what the node shows every five
# minutes, as OpenMetrics with timestamps. Of the last hours, for which rules are evaluated every minute, it has a sample a minute, as
# rules need it: the node shows the same until its next poll.
step=300
recent=$((27 * 3600))
write_history() {
	local steps=$(($3 / step))
	for _ in $(seq "$steps"); do
		printf 'next\nurl = "http://%s/-/sim/advance?by=%ss"\nrequest = POST\noutput = /dev/null\n' "$1" "$step"
		printf 'next\nurl = "http://%s/metrics"\nheader = "Accept: application/openmetrics-text;version=1.0.0"\n' "$1"
	done | curl --silent --fail --config - |
		awk -v at=$(($2 + step)) -v last=$(($2 + steps * step)) -v recent="$recent" -v step="$step" \
			-v labels='instance="h100-underused",cluster="demo",job="mig-exporter"' '
			function put(sample,    t) {
				print sample, at
				if (at < last - recent - step || at == last) return
				for (t = at + 60; t < at + step; t += 60) print sample, t
			}
			/^# EOF/ { put("up{" labels "} 1"); at += step; next }
			/^#/ { next }
			{
				name = $1; value = $NF
				brace = index($0, "{")
				if (brace && brace < index($0 " ", " ")) {
					close_at = match($0, /} [^}]*$/)
					put(substr($0, 1, brace) labels (substr($0, brace + 1, 1) == "}" ? "" : ",") substr($0, brace + 1, close_at - brace) " " value)
				} else {
					put(name "{" labels "} " value)
				}
			}
			END { print "# EOF" }'
}

# list_rules prints the recording rules: name, seconds between two evaluations, expression. Alerts and dashboards look back for days at
# what is recorded for alerts, and for a day at the rest.
list_rules() {
	awk '
		function flush() { if (name != "") print name "\t" step "\t" expr; name = "" }
		FNR == 1 { flush(); step = FILENAME ~ /dashboards/ ? 60 : 300 }
		/^ *(- |#)/ { flush() }
		/^ *- record: / { name = $3; expr = ""; next }
		name != "" { sub(/^ *(expr: \|?)?/, ""); expr = expr $0 " " }
		END { flush() }' deploy/prometheus/alerts-recording.rules.yaml deploy/prometheus/dashboards.rules.yaml
}

# select_rules WHICH prints those of the rules in its input that can be evaluated ("ready"), or else the others ("waiting"): they read what
# another one of them records.
select_rules() {
	awk -F '\t' -v which="$1" '
		{ name[NR] = $1; expr[NR] = $3; rule[NR] = $0 }
		END {
			for (i = 1; i <= NR; i++) {
				state = "ready"
				for (j = 1; j <= NR; j++) if (j != i && index(expr[i], name[j])) state = "waiting"
				if (state == which) print rule[i]
			}
		}'
}

# evaluate FROM LATER prints what the rules in its input would have recorded by now, as OpenMetrics with timestamps: from a time in Unix
# seconds on, or for the last hours if they are evaluated every minute, and in both cases from LATER seconds after that.
evaluate() {
	local now from name every expr
	now=$(date +%s)
	while IFS=$'\t' read -r name every expr; do
		from=$1
		[ "$every" = "$step" ] || [ "$from" -gt $((now - recent)) ] || from=$((now - recent))
		from=$((from + $2))
		[ "$from" -lt "$now" ] || continue
		"$promtool" query range --start="$from" --end="$now" --step="${every}s" "http://$at" "$expr" |
			awk -v name="$name" '
				/=>$/ { labels = substr($0, index($0, "{"), length($0) - 3 - index($0, "{") + 1); gsub(/", /, "\",", labels) }
				/ @\[[0-9.]*\]$/ { print name labels " " $1 " " substr($2, 3, length($2) - 3) }' || return 1
	done
	echo "# EOF"
}

# record_past FROM evaluates all recording rules since a time in Unix seconds. A rule that reads what another one records comes after it, and
# begins an hour later, for which it may look back.
record_past() {
	local rules ready later=0 failed
	echo '{}' >"$dir/no-rules.yml"
	rules=$(list_rules)
	while [ -n "$rules" ]; do
		ready=$(select_rules ready <<<"$rules")
		rules=$(select_rules waiting <<<"$rules")
		[ -n "$ready" ] || return 1
		start_prometheus "$dir/no-rules.yml" || exit 1
		failed=
		evaluate "$1" "$later" <<<"$ready" >"$dir/recorded" || failed=1
		stop_prometheus
		[ -z "$failed" ] && import "$dir/recorded" || return 1
		later=$((later + 3600))
	done
}

# import FILE writes a past of Prometheus, which must not run, in blocks, and removes the file.
import() {
	"$promtool" tsdb create-blocks-from openmetrics --quiet --max-block-duration=192h "$1" "$dir/data" >"$dir/promtool.log" 2>&1 || {
		tail -n 5 "$dir/promtool.log"
		return 1
	}
	rm "$1"
}

# start_prometheus CONFIG starts Prometheus, which reads all blocks at its start, and later once a minute.
start_prometheus() {
	start prometheus "$prometheus" --config.file="$1" --storage.tsdb.path="$dir/data" --web.listen-address="$at"
	wait_for prometheus '(Server is ready to receive web requests)' >/dev/null || { say "for another port than $at set DEMO_PROMETHEUS_PORT"; return 1; }
}

stop_prometheus() {
	kill -TERM -- "-${pids[-1]}"
	wait "${pids[-1]}" || true
}

# move_clock ADDRESS FROM lets a stepped clock pass as the wall clock does, from a time in Unix seconds on.
move_clock() {
	local now from=$2
	while sleep 15; do
		now=$(date +%s)
		curl --silent --fail --request POST --output /dev/null "http://$1/-/sim/advance?by=$((now - from))s" || continue
		from=$now
	done
}
export -f move_clock

# node NAME FLAGS... starts a simulated node, in address, and appends it to the targets.
targets=()
address=
node() {
	local name=$1
	shift
	start "$name" "$program" --driver=sim --web.listen-address=127.0.0.1:0 "$@"
	address=$(wait_for "$name" 'msg=listening .*address=([^ ]+)')
	say "simulated node $name: http://$address/"
	targets+=("{targets: [\"$address\"], labels: {instance: $name, cluster: demo}}")
}

prometheus=$(command -v prometheus || true)
promtool=$(command -v promtool || true)
past=0
if [ -n "$prometheus" ] && [ -n "$promtool" ] && command -v curl >/dev/null && command -v awk >/dev/null; then
	past=${DEMO_PAST_SECONDS:-691200}
elif [ -n "$prometheus" ]; then
	say "promtool, curl or awk is missing, so the nodes begin without a past: GpuUnderused fires after a day"
fi

# require_free PORT VARIABLE ends the demo if a program listens on the port.
require_free() {
	if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then
		say "a program listens on 127.0.0.1:$1 already, maybe another demo: for another port set $2"
		exit 1
	fi
}
grafana=$(command -v grafana || command -v grafana-server || true)
home=${GRAFANA_HOME:-/usr/share/grafana}
port=${DEMO_GRAFANA_PORT:-13000}
at=127.0.0.1:${DEMO_PROMETHEUS_PORT:-19090} # 9090 is that of an installed service
[ -z "$prometheus" ] || require_free "${at#*:}" DEMO_PROMETHEUS_PORT
[ -z "$prometheus" ] || [ -z "$grafana" ] || [ ! -d "$home/conf" ] || require_free "$port" DEMO_GRAFANA_PORT

node a100-mixed --dcgm.address=embedded
underused=(--sim.scenario=testdata/scenarios/h100-underused.yaml)
if [ "$past" = 0 ]; then
	node h100-underused "${underused[@]}"
else
	# Its clock is moved from here: through the past at once, then as time passes.
	clock=$(($(date +%s) - past))
	export MIG_SIM_START
	MIG_SIM_START=$(date -u -d "@$clock" +%Y-%m-%dT%H:%M:%SZ)
	node h100-underused "${underused[@]}" --sim.clock=step --poll.interval=${step}s
	say "the last $((past / 3600)) hours of h100-underused pass now"
	write_history "$address" "$clock" "$past" >"$dir/history"
	import "$dir/history"
	# Dashboards and alerts read what rules have recorded.
	record_past "$clock" || say "dashboards and alerts begin without all that rules would have recorded"
	start clock bash -c 'move_clock "$@"' move_clock "$address" $((clock + past / step * step))
fi

if [ -z "$prometheus" ]; then
	say "there is no prometheus on the PATH, so there are no rules and no dashboards. Debian's: apt-get install prometheus"
	say "Ctrl-C ends the demo"
	wait -n || true
	exit 1
fi
# Alerts wait for minutes to hours: 15 s are enough to see them here.
mkdir "$dir/rules"
for rules in deploy/prometheus/*.rules.yaml; do
	sed -E 's/^( +for:) .*/\1 15s/' "$rules" >"$dir/rules/${rules##*/}"
done
config=$dir/prometheus.yml
{
	echo "global: {scrape_interval: 15s, evaluation_interval: 15s}"
	echo "rule_files: [\"$dir/rules/*.rules.yaml\"]"
	echo "scrape_configs:"
	echo "  - {job_name: mig-exporter, honor_labels: true, static_configs: [$(IFS=,; echo "${targets[*]}")]}"
} >"$config"
start_prometheus "$config" || exit 1
say "Prometheus: http://$at/alerts"

if [ -z "$grafana" ] || [ ! -d "$home/conf" ]; then
	say "there is no Grafana (grafana on the PATH and $home, or GRAFANA_HOME), so the dashboards in dashboards/ are not shown: https://grafana.com/grafana/download"
else
	mkdir -p "$dir/provisioning/datasources" "$dir/provisioning/dashboards"
	echo "{apiVersion: 1, datasources: [{name: Prometheus, type: prometheus, url: \"http://$at\", isDefault: true}]}" >"$dir/provisioning/datasources/demo.yaml"
	echo "{apiVersion: 1, providers: [{name: mig-exporter, type: file, options: {path: \"$PWD/dashboards\"}}]}" >"$dir/provisioning/dashboards/demo.yaml"
	server=("$grafana")
	[ "$(basename "$grafana")" = grafana-server ] || server+=(server)
	GF_PATHS_PROVISIONING=$dir/provisioning GF_PATHS_DATA=$dir/grafana GF_PATHS_LOGS=$dir GF_PATHS_PLUGINS=$dir/plugins GF_SERVER_HTTP_ADDR=127.0.0.1 GF_SERVER_HTTP_PORT=$port \
		GF_AUTH_ANONYMOUS_ENABLED=true GF_AUTH_ANONYMOUS_ORG_ROLE=Viewer GF_ANALYTICS_REPORTING_ENABLED=false GF_ANALYTICS_CHECK_FOR_UPDATES=false GF_PLUGINS_PREINSTALL_DISABLED=true \
		start grafana "${server[@]}" --homepath "$home"
	wait_for grafana '(HTTP Server Listen)' >/dev/null || { say "for another port than $port set DEMO_GRAFANA_PORT"; exit 1; }
	say "Grafana: http://127.0.0.1:$port/dashboards"
fi
say "Ctrl-C ends all of it"
wait -n || true
say "a program has ended; the end of the logs:"
tail -n 3 "$dir"/*.log
exit 1
