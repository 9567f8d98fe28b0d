#!/usr/bin/env bash
# Two simulated nodes, a Prometheus that scrapes them with the rules of deploy/prometheus, and Grafana with the dashboards, until Ctrl-C.
# Prometheus and Grafana are used if they are installed; what is missing is named. Nothing outside a temporary folder is changed.
set -euo pipefail
cd "$(dirname "$0")/.."

program=${MIG_EXPORTER:-bin/mig-exporter}
dir=$(mktemp -d "${TMPDIR:-/tmp}/mig-exporter-demo.XXXXXX")
pids=()
stop() {
	trap - EXIT INT TERM
	[ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
	wait
	rm -rf "$dir"
}
trap stop EXIT
trap 'exit 0' INT TERM

say() { printf 'make demo: %s\n' "$*"; }

# start NAME COMMAND... runs a program with its output in a log, out of reach of Ctrl-C: stop ends it, once.
start() {
	local name=$1
	shift
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

# node NAME FLAGS... starts a simulated node and appends it to the targets.
targets=()
node() {
	local name=$1 address
	shift
	start "$name" "$program" --driver=sim --web.listen-address=127.0.0.1:0 "$@"
	address=$(wait_for "$name" 'msg=listening .*address=([^ ]+)')
	say "simulated node $name: http://$address/"
	targets+=("{targets: [\"$address\"], labels: {instance: $name, cluster: demo}}")
}

node a100-mixed --sim.scenario=testdata/scenarios/dgx-a100-mixed.yaml --dcgm.mode=embedded
# GpuUnderused fires once the advisor has seen a day.
node h100-underused --sim.scenario=testdata/scenarios/h100-underused.yaml

prometheus=$(command -v prometheus || true)
if [ -z "$prometheus" ]; then
	say "there is no prometheus on the PATH, so there are no rules and no dashboards. Debian's: apt-get install prometheus"
	say "Ctrl-C ends the demo"
	wait -n || true
	exit 1
fi
config=$dir/prometheus.yml
{
	echo "global: {scrape_interval: 15s, evaluation_interval: 15s}"
	echo "rule_files: [\"$PWD/deploy/prometheus/*.rules.yaml\"]"
	echo "scrape_configs:"
	echo "  - {job_name: mig-exporter, honor_labels: true, static_configs: [$(IFS=,; echo "${targets[*]}")]}"
} >"$config"
at=127.0.0.1:${DEMO_PROMETHEUS_PORT:-19090} # 9090 is that of an installed service
start prometheus "$prometheus" --config.file="$config" --storage.tsdb.path="$dir/data" --web.listen-address="$at"
wait_for prometheus '(Server is ready to receive web requests)' >/dev/null || { say "for another port than $at set DEMO_PROMETHEUS_PORT"; exit 1; }
say "Prometheus: http://$at/alerts"

grafana=$(command -v grafana || command -v grafana-server || true)
home=${GRAFANA_HOME:-/usr/share/grafana}
if [ -z "$grafana" ] || [ ! -d "$home/conf" ]; then
	say "there is no Grafana (grafana on the PATH and $home, or GRAFANA_HOME), so the dashboards in dashboards/ are not shown: https://grafana.com/grafana/download"
else
	mkdir -p "$dir/provisioning/datasources" "$dir/provisioning/dashboards"
	echo "{apiVersion: 1, datasources: [{name: Prometheus, type: prometheus, url: \"http://$at\", isDefault: true}]}" >"$dir/provisioning/datasources/demo.yaml"
	echo "{apiVersion: 1, providers: [{name: mig-exporter, type: file, options: {path: \"$PWD/dashboards\"}}]}" >"$dir/provisioning/dashboards/demo.yaml"
	server=("$grafana")
	[ "$(basename "$grafana")" = grafana-server ] || server+=(server)
	port=${DEMO_GRAFANA_PORT:-13000}
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
