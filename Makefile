# make          builds bin/mig-exporter and bin/migctl
# make run      serves this node's GPUs, or a simulated node if there is no NVIDIA driver
# make test     all checks but long runs and those of packages, the Helm chart and a real kubelet
# make help     lists the rest

VERSION  := $(shell cat VERSION)
REVISION ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
BRANCH   ?= $(shell git rev-parse --abbrev-ref HEAD 2>/dev/null || echo unknown)
# The commit's date, not today's: the same commit gives the same binary.
DATE     ?= $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)

GO_MIN        := 1.26
LINT_VERSION  := 2.15.0
# The last version whose dependencies are all open: later ones need modules for formats that are not used here.
NFPM_VERSION  := 2.45.2
# Relative, since make splits names of files at spaces: a recipe that changes the folder writes "$(CURDIR)/$(LINT)".
LINT          := .bin/golangci-lint
NFPM          := .bin/nfpm
LINT_RUN      := "$(CURDIR)/$(LINT)" run
HELM_VERSION  := 3.22.0
# The minor version of its k8s.io/client-go. Without it `helm template` renders for Kubernetes 1.20, which the chart refuses.
HELM_KUBERNETES := 37
HELM_LDFLAGS  := -X helm.sh/helm/v3/internal/version.version=v$(HELM_VERSION) \
	-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=$(HELM_KUBERNETES) \
	-X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=$(HELM_KUBERNETES)
HELM          := .bin/helm
CHART         := deploy/helm/mig-exporter
PROMTEST      := internal/promtest
APITEST       := internal/apitest
KUBELETTEST   := internal/kubelettest
CHARTTEST     := internal/charttest
KUBECTL       := cmd/kubectl-mig
# Of kubectl mig, OS/ARCHITECTURE.
KUBECTL_PLATFORMS := linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64 windows/arm64
BROWSERTEST   := internal/browsertest
FUZZTIME      ?= 10s
BENCH_RUNS    ?= 5
EVALUATE_NODES ?= 200
EVALUATE_FULL  ?= -full 20 -full-hours 48
PROMETHEUS    ?= /usr/bin/prometheus
TEST_TIMEOUT  ?= 20m
# Many repetitions and long simulated times, which the race detector would make ten times as slow and learn nothing from.
# Of TestWatchdogAbort's program, Go's runtime cannot always print the stacks where the race detector's C code runs.
LONG          := TestNothingGrows|TestRenderIs|TestNoHeldDevice|TestLoneScrape|TestLayoutChangesLeakNothing|TestLayoutChangeUnderLoad|TestRightsizing\b|TestUnderusedNodeHas|TestSingleStrategyHas|TestCodecRefusesWhatTakes|TestWatchdogAbort
# Whole weeks of a fleet beside a real Prometheus engine.
LONG_PROMQL   := TestDemoFires|TestRightsizingLoop|TestSingleStrategyLoop|TestAdvisorBesideThePlainRule
# Three of these run at the same time: test-e2e, test-promql and test-crash mostly wait for processes,
# the others compute. The output of each comes when it ends. The linter is compiled before them: make
# would run it last, alone, otherwise.
AT_ONCE       := lint test-e2e test-unit test-promql test-crash test-truth test-kubectl test-openapi test-docs
# Packages without goroutines: the race detector makes their tests four times as slow, and has nothing to find.
NO_GOROUTINES := /internal/(mig|advise|archtest|sim/requests)$$
# They repeat at hundreds of points, or with hundreds of values, what other tests do once with the race detector.
REPEATED      := TestCrashBetweenAnyTwoSteps|TestCrashDuringRollBack|TestCrashDuringRestore|TestFailureAtEveryStep|TestFullDiskAtEveryWrite|TestRecoveryKeepsRunning|TestLayoutChangesNeverMix|TestDearSteps|TestRenderUnderChurn|TestShippedScenariosKeep|TestStoriesAdmit|TestFleetOutput
ARGS          ?=

# The commit's time, which packages and archives give to their files.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH

VERSION_PKG := github.com/prometheus/common/version
LDFLAGS     := -s -w -X $(VERSION_PKG).Version=$(VERSION) -X $(VERSION_PKG).Revision=$(REVISION) \
	-X $(VERSION_PKG).Branch=$(BRANCH) -X $(VERSION_PKG).BuildDate=$(DATE)

# go-nvml is bound with cgo and compiles with a page of deprecation warnings otherwise.
export CGO_ENABLED := 1
export CGO_CFLAGS  := -O2 -g -Wno-deprecated-declarations
# The commit is stamped above; go's own stamping fails in checkouts that belong to another user. go vet is part of make lint, and
# of the targets of the modules that are linted elsewhere: as a part of each go test it would look at all dependencies twice.
export GOFLAGS     += -buildvcs=false -vet=off
# Each process with the race detector sleeps a second before it ends, otherwise: the tests start hundreds.
export GORACE      ?= atexit_sleep_ms=20

.DEFAULT_GOAL := build
ifndef PARALLEL
.NOTPARALLEL:
endif

.PHONY: build
build: toolchain ## build bin/mig-exporter and bin/migctl (the default)
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/mig-exporter ./cmd/mig-exporter
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/migctl ./cmd/migctl

.PHONY: nvml-sim
nvml-sim: toolchain ## build bin/libnvidia-ml.so.1, the simulated node for any client of NVML
	go build -trimpath -buildmode=c-shared -ldflags '-s -w -extldflags=-Wl,-soname,libnvidia-ml.so.1' -o bin/libnvidia-ml.so.1 ./cmd/nvml-sim
	@rm -f bin/libnvidia-ml.so.h

.PHONY: dcgm-sim
dcgm-sim: toolchain ## build bin/libdcgm.so.4, the simulated node's DCGM host engine for any client of DCGM
	go build -trimpath -buildmode=c-shared -ldflags '-s -w -extldflags=-Wl,-soname,libdcgm.so.4' -o bin/libdcgm.so.4 ./cmd/dcgm-sim
	@rm -f bin/libdcgm.so.h

# The environment chooses the driver, so that flags in ARGS override it. The program alone knows its port and its scheme: its log has
# the page to open, url=http://localhost:9401/.
.PHONY: run
run: build ## build and serve; more flags: make run ARGS='--log.level=debug'
	@if PATH="$$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | grep -q 'libnvidia-ml\.so\.1' || [ -e /dev/nvidiactl ]; then \
		echo "make run: NVIDIA driver found, serving the GPUs of this node"; \
	else \
		echo "make run: no NVIDIA driver here, serving the built-in simulated node dgx-a100-mixed"; \
		export MIG_EXPORTER_DRIVER=sim MIG_EXPORTER_DCGM_ADDRESS=embedded; \
	fi; \
	exec bin/mig-exporter $(ARGS)

.PHONY: demo
demo: build ## serve two simulated nodes, with Prometheus and Grafana if they are installed
	@deploy/demo.sh

.PHONY: test
test: toolchain fmt-check $(LINT) ## check everything but long runs, packages, the Helm chart and a real kubelet
	@$(MAKE) --no-print-directory PARALLEL=yes -j3 -O $(AT_ONCE)
	@echo "==> make test: everything passed"

.PHONY: test-long
test-long: toolchain ## check that nothing grows, and follow right-sizing's loops from alert to freed GPU; minutes
	@$(MAKE) --no-print-directory PARALLEL=yes -j2 -O test-growth test-loops

.PHONY: fmt-check
fmt-check: toolchain
	@echo "==> formatting"
	@files=$$(gofmt -l .) && [ -z "$$files" ] || { echo "$$files"; echo "not formatted; run: make fmt"; exit 1; }

.PHONY: lint
lint: $(LINT) ## run golangci-lint, installing the version that the project uses into .bin
	@echo "==> golangci-lint"
	$(LINT_RUN) ./... || { echo "fix these, or say on the line why not: //nolint:NAME // REASON"; exit 1; }
	cd $(PROMTEST) && $(LINT_RUN) ./...
	cd $(APITEST) && $(LINT_RUN) ./...
	cd $(BROWSERTEST) && $(LINT_RUN) ./...
	cd $(KUBECTL) && $(LINT_RUN) ./...

.PHONY: test-unit
test-unit: toolchain
	@echo "==> unit tests, with the race detector"
	go test -race -timeout $(TEST_TIMEOUT) -skip '$(LONG)|$(REPEATED)' $$(go list ./... | grep -v -e /cmd/ -e /deploy -e /control/crash -e /control/rival -e /advise/truth | grep -v -E '$(NO_GOROUTINES)')
	go test -timeout $(TEST_TIMEOUT) $$(go list ./... | grep -E '$(NO_GOROUTINES)')
	go test -timeout $(TEST_TIMEOUT) -run '$(REPEATED)' ./collector ./internal/control ./internal/nvmlsource ./internal/sim

# Without the race detector, which makes it ten times as slow: each node is evaluated by one goroutine alone.
.PHONY: test-truth
test-truth: toolchain
	@echo "==> right-sizing: what is recommended on generated nodes is applied, and does not harm"
	go test -count=1 -timeout $(TEST_TIMEOUT) ./internal/advise/truth

.PHONY: evaluate
evaluate: toolchain ## evaluate right-sizing on 200 simulated nodes and write docs/rightsizing-evaluation.md; it takes 25 minutes on two cores
	go test -count=1 -timeout 1h -run '^TestAdviceIsTrue$$' ./internal/advise/truth -nodes $(EVALUATE_NODES) $(EVALUATE_FULL) \
		-report "$(CURDIR)/docs/rightsizing-evaluation.md"

# TRACE is a CSV file, see docs/rightsizing-replay.md.
MODEL        ?= A100-80GB
SERVICE_TIME ?= 0s
STARTS       ?=
.PHONY: replay
replay: toolchain ## replay a trace, TRACE=FILE.csv, on GPUs of a MODEL, and print what right-sizing would have done
	@[ -n "$(TRACE)" ] || { echo "no trace; give one: make $@ TRACE=FILE.csv MODEL=A100-80GB"; exit 1; }
	@go test -count=1 -timeout 1h -v -run '^TestReplay$$' ./internal/advise/truth -replay "$$(realpath -m '$(TRACE)')" \
		-replay-model '$(MODEL)' -service-time '$(SERVICE_TIME)' $(if $(filter seen,$(STARTS)),-starts-seen)

# Without the race detector: it would slow the hundreds of processes that are killed, and the engine's own tests have it.
.PHONY: test-crash
test-crash: toolchain
	@echo "==> partition control, killed at every point of every operation, and with a foreign partitioner between its driver calls"
	go test -count=1 -parallel 6 -timeout $(TEST_TIMEOUT) ./internal/control/crash ./internal/control/rival # most wait for processes

# -count=1: the tests build what they test in processes of their own, which the test cache does not see.
.PHONY: test-e2e
test-e2e: toolchain
	@echo "==> end to end: the built binary on simulated nodes, byte for byte against testdata/golden"
	go test -race -count=1 -parallel 6 -timeout $(TEST_TIMEOUT) -skip '$(LONG)|$(REPEATED)' ./cmd/... && go test -count=1 -timeout $(TEST_TIMEOUT) -run '$(REPEATED)' ./cmd/internal/migctl || { echo "where the change of a golden is meant, run: make golden, and review the difference"; exit 1; }

.PHONY: test-hardware
test-hardware: build ## print what check-node says and what this node's driver answers where nvml.h is open, and hold the driver contract against this node's own GPUs, reading only; it fails if there are none
	@report=$$(bin/mig-exporter check-node --log.level=error || true); echo "$$report"; \
	case "$$report" in *"refusing to be the first to open the GPUs"*) exit 1;; esac
	NVML_CONTRACT_HARDWARE=1 go test -count=1 -v -timeout $(TEST_TIMEOUT) -run '^Test(Contract|Facts)OfTheHardware$$' ./cmd/nvml-sim/contract

.PHONY: test-growth
test-growth: toolchain
	@echo "==> nothing grows over 10,000 polls and 1,000 scrapes, nor over 320 layout changes under scrapes, nor over 10,000 that are only read; rendered text and holders over whole scenarios; layout changes under load; the allocations of a scrape; whole weeks; messages that take too much memory; the watchdog's abort"
	go test -count=1 -timeout $(TEST_TIMEOUT) -run '$(LONG)' $$(grep -rlE '^func ($(LONG))' --include='*_test.go' cmd internal | xargs dirname | sort -u | sed 's|^|./|')

.PHONY: test-docs
test-docs: toolchain
	@echo "==> generated documentation is up to date"
	go test -count=1 -run TestDocs ./collector ./internal/nvmlsource || { echo "run: make docs"; exit 1; }

.PHONY: test-promql
test-promql: toolchain
	@echo "==> joins, sums and the queries of all dashboards in a real PromQL engine, on testdata/golden and simulated nodes"
	cd $(PROMTEST) && GOGC=400 go test -count=1 -parallel 6 -timeout $(TEST_TIMEOUT) -skip '$(LONG_PROMQL)' ./... # most tests wait for stepped programs

.PHONY: test-loops
test-loops: toolchain
	@echo "==> right-sizing from alert to freed GPU, in a real PromQL engine"
	cd $(PROMTEST) && GOGC=400 go test -count=1 -parallel 6 -timeout $(TEST_TIMEOUT) -run '$(LONG_PROMQL)' ./...

.PHONY: test-browser
test-browser: toolchain ## check the status page in headless Chromium, with axe-core if there is npm
	@echo "==> the status page in a browser"
	@command -v chromium >/dev/null || { echo "NOT TESTED: the status page in a browser: there is no chromium"; exit 0; }; \
	cd $(BROWSERTEST) && go test -v -count=1 -timeout $(TEST_TIMEOUT) ./...

.PHONY: pictures
pictures: toolchain ## draw the pictures of the status page in docs/images again; needs chromium
	cd $(BROWSERTEST) && go test -count=1 -timeout $(TEST_TIMEOUT) -run TestPictures ./... -args -pictures

.PHONY: test-openapi
test-openapi: toolchain
	@echo "==> the HTTP API of partition control against its OpenAPI document, the SBOM against CycloneDX's schema"
	cd $(APITEST) && go test -count=1 -timeout $(TEST_TIMEOUT) ./...

.PHONY: test-kubectl
test-kubectl: toolchain
	@echo "==> kubectl mig: against an API server of its own and the built exporter"
	cd $(KUBECTL) && go test -count=1 -timeout $(TEST_TIMEOUT) ./...

.PHONY: test-kubectl-platforms
test-kubectl-platforms: toolchain ## compile kubectl mig for all platforms; minutes the first time
	@echo "==> kubectl mig, compiled for all platforms"
	@cd $(KUBECTL) && for platform in $(KUBECTL_PLATFORMS); do \
		echo "build $$platform"; \
		CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/} go build -o /dev/null . || exit 1; \
	done

# ADDRESS is where the archives will be published; krew downloads them from there.
ADDRESS ?= @ADDRESS@
.PHONY: kubectl
kubectl: toolchain ## make dist/kubectl: archives of kubectl mig for all platforms, and its krew manifest (ADDRESS=https://...)
	VERSION='$(VERSION)' LDFLAGS='$(LDFLAGS)' DIST='$(DIST)/kubectl' PLATFORMS='$(KUBECTL_PLATFORMS)' ADDRESS='$(ADDRESS)' \
		deploy/krew/release.sh

KUBERNETES          = $(shell sed -n 's|^\tk8s.io/kubernetes \(v[^ ]*\).*|\1|p' $(KUBELETTEST)/go.mod)
KUBERNETES_BINARIES = .bin/kubernetes-$(KUBERNETES)
# How many packages of Kubernetes are compiled at the same time.
KUBERNETES_JOBS    ?= 2

# Its vet and lint are here as well: they compile client-go, which nothing in make test does.
.PHONY: e2e-kubelet
e2e-kubelet: stage nvml-sim kubernetes containerd $(LINT) ## as root: a real kubelet, API server and container runtime on the simulated node; minutes, and the first time half an hour
	@echo "==> beside a real kubelet: Kubernetes $(KUBERNETES); logs and measurements in bin/e2e-kubelet"
	@mkdir -p bin/e2e-kubelet
	cd $(KUBECTL) && CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o "$(CURDIR)/bin/kubectl-mig" .
	cd $(KUBELETTEST) && go vet ./... && $(LINT_RUN) ./...
	cd $(KUBELETTEST) && KUBELETTEST_BINARIES="$(CURDIR)/$(KUBERNETES_BINARIES)" KUBELETTEST_PROGRAMS="$(CURDIR)/bin" \
		KUBELETTEST_LOGS="$(CURDIR)/bin/e2e-kubelet" go test -trimpath -count=1 -v -timeout 30m . $(ARGS)

# -trimpath above and below: the test shares the build cache of the kubelet.
.PHONY: kubernetes
kubernetes: toolchain
	@[ -x $(KUBERNETES_BINARIES)/kubelet ] && [ -x $(KUBERNETES_BINARIES)/kube-apiserver ] || { \
		echo "==> building kubelet and kube-apiserver $(KUBERNETES) into .bin"; mkdir -p $(KUBERNETES_BINARIES); \
		cd $(KUBELETTEST) && nice -n 19 go build -p $(KUBERNETES_JOBS) -trimpath \
			-ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES)' -o "$(CURDIR)/$(KUBERNETES_BINARIES)/" \
			k8s.io/kubernetes/cmd/kubelet k8s.io/kubernetes/cmd/kube-apiserver; }

# Installed without asking only in a container, where no init system would start them as services.
.PHONY: containerd
containerd:
	@for tool in containerd runc etcd busybox; do command -v $$tool >/dev/null || missing=yes; done; \
	[ -z "$$missing" ] && [ -x /usr/lib/cni/bridge ] || { \
		install="apt-get install --no-install-recommends containerd runc etcd-server containernetworking-plugins busybox-static"; \
		if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || [ -d /run/systemd/system ]; then \
			echo "containerd, runc, etcd, busybox or CNI's plugins are missing; on Debian: $$install"; exit 1; \
		fi; \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive $$install -y -q; }

# Apart from make test: it compiles Helm and its Kubernetes client. CI runs both if its caches are warm.
.PHONY: test-chart
test-chart: toolchain $(LINT) ## check the Helm chart, its rights and deploy/manifests; the first time it compiles Helm, which takes minutes
	@echo "==> the Helm chart, rendered with Helm's own engine"
	cd $(CHARTTEST) && go vet ./... && $(LINT_RUN) ./... && go test -count=1 -timeout $(TEST_TIMEOUT) ./...

# A folder with kube-apiserver, and the modules that publish the definitions of the custom resources.
API_SERVER ?= $(firstword $(wildcard .bin/kubernetes-*))
MONITORS   := github.com/prometheus-operator/prometheus-operator@v0.85.0
OPENSHIFT  := github.com/openshift/api@v0.0.0-20250710004639-926605d3338b
module_dir  = $$(GOFLAGS= go mod download -json $(1) | sed -n 's/^\t"Dir": "\(.*\)",/\1/p')
.PHONY: test-chart-apiserver
test-chart-apiserver: toolchain ## apply all that the chart renders to a real API server (API_SERVER=FOLDER with kube-apiserver), as a dry run; it needs etcd
	@[ -x "$(API_SERVER)/kube-apiserver" ] || { echo "no kube-apiserver; give its folder: make $@ API_SERVER=FOLDER"; exit 1; }
	@command -v etcd >/dev/null || { echo "etcd is missing: on Debian, apt-get install etcd-server"; exit 1; }
	folder=$$(realpath '$(API_SERVER)') && cd $(CHARTTEST) && CHARTTEST_BINARIES="$$folder" \
		CHARTTEST_CRDS=$(call module_dir,$(MONITORS))/example/prometheus-operator-crd:$(call module_dir,$(OPENSHIFT))/security/v1/zz_generated.crd-manifests \
		go test -count=1 -v -timeout $(TEST_TIMEOUT) -run '^Test(Apply|NodePolicy)$$' .

.PHONY: manifests
manifests: toolchain ## rewrite deploy/manifests with what the Helm chart renders
	cd $(CHARTTEST) && go test -count=1 -run '^TestManifests$$' . -update

.PHONY: chart
chart: $(HELM) ## package the Helm chart into dist/
	$(HELM) lint --strict $(CHART)
	$(HELM) package --destination dist $(CHART)

.PHONY: golden
golden: toolchain ## rewrite testdata/golden with what the program serves now
	go test -count=1 -run TestGolden ./cmd/mig-exporter -update

.PHONY: docs
docs: toolchain ## rewrite the generated documentation
	go test -count=1 -run TestDocsSeries ./cmd/mig-exporter -update
	go test -count=1 -run TestDocs ./collector -update
	go test -count=1 -run TestDocs ./internal/nvmlsource -update

.PHONY: dashboards
dashboards: toolchain ## rewrite the Grafana dashboards in dashboards/
	go test -count=1 -run TestDashboards ./dashboards -update

.PHONY: bench
bench: toolchain ## measure and print the tables of docs/performance.md; it takes ten minutes and a machine that is quiet
	@mkdir -p bin && cat /proc/loadavg >bin/bench.load
	go test -run '^$$' -bench 'ScrapeLone|ScrapeRepeated|Gzip|ScrapeGrowth|Loopback|Poll' -count $(BENCH_RUNS) -timeout 1h ./cmd/mig-exporter >bin/bench.txt
	go test -run '^$$' -bench History -count $(BENCH_RUNS) -timeout 1h ./cmd/mig-exporter >>bin/bench.txt
	go test -run '^$$' -bench Watchers -benchtime 10x -count $(BENCH_RUNS) -timeout 1h ./cmd/mig-exporter >>bin/bench.txt
	go test -run '^$$' -bench Step -benchtime 5x -count $(BENCH_RUNS) -timeout 1h ./cmd/mig-exporter >>bin/bench.txt
	go test -run '^$$' -bench DriverCalls -benchtime 1x -count 1 -timeout 1h ./cmd/mig-exporter >>bin/bench.txt
	go test -run '^$$' -bench PlanWorst -count $(BENCH_RUNS) -timeout 1h ./internal/mig >>bin/bench.txt
	go test -run '^$$' -bench Resident -benchtime 1x -count 2 -timeout 1h ./cmd/mig-exporter >>bin/bench.txt
	@echo "load average before: $$(cat bin/bench.load)"
	@go run ./cmd/benchtable <bin/bench.txt

# The blocks, 350 MB for each exporter's names, are written once and kept in bin/fleet.
FLEET_NODES ?= 200
.PHONY: bench-fleet
bench-fleet: toolchain ## ask a Prometheus (PROMETHEUS=/usr/bin/prometheus) about a synthetic week of FLEET_NODES (200) nodes of eight GPUs
	@command -v $(PROMETHEUS) >/dev/null || { echo "$(PROMETHEUS) is missing: apt-get install prometheus, or PROMETHEUS=PATH"; exit 1; }
	@mkdir -p bin/fleet
	cd $(PROMTEST) && FLEET_BENCH_PROMETHEUS=$(PROMETHEUS) FLEET_BENCH_DIR="$(CURDIR)/bin/fleet" FLEET_BENCH_NODES=$(FLEET_NODES) \
		go test -count=1 -v -timeout 1h -run '^TestBenchFleet$$' .

# Without bench, which takes a quiet machine: it writes 4 GB of blocks, and holds an hour of samples in memory.
.PHONY: bench-panels
bench-panels: toolchain ## ask all queries of the dashboards of synthetic fleets of 200 nodes; prints processor time and time of each panel, the slowest first
	@mkdir -p bin
	cd $(PROMTEST) && go test -run '^$$' -bench Panels -benchtime 3x -timeout 1h . >"$(CURDIR)/bin/bench-panels.txt"
	@awk '/ p50-s/ { for (i = 2; i < NF; i++) v[$$(i + 1)] = $$i; print v["cpu-s"], v["p50-s"], v["series"], $$1 }' bin/bench-panels.txt | sort -rn

.PHONY: fuzz
fuzz: toolchain ## fuzz every target for FUZZTIME each (10s)
	@for file in $$(grep -rl --include='*_test.go' '^func Fuzz' cmd collector internal); do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$file); do \
			echo "==> $$target in $$file"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) ./$$(dirname $$file) || exit 1; \
		done; \
	done

# What a package has besides the programs. man pages and completions are the programs' own.
STAGE := bin/stage
.PHONY: stage
stage: build
	@mkdir -p $(STAGE)
	@for program in mig-exporter migctl; do \
		bin/$$program --help-man 2>/dev/null | \
			sed '1,/^\.SH "NAME"/c .TH '"$$program"' 1 "$(firstword $(subst T, ,$(DATE)))" "mig-exporter $(VERSION)" "User Commands"\n.SH "NAME"' | \
			gzip -9n >$(STAGE)/$$program.1.gz && \
		bin/$$program --completion-script-bash >$(STAGE)/$$program.bash && \
		bin/$$program --completion-script-zsh >$(STAGE)/$$program.zsh && \
		bin/$$program --completion-script-fish >$(STAGE)/$$program.fish || exit 1; \
	done
	@gzip -9nc CHANGELOG.md >$(STAGE)/changelog.gz
	go run ./cmd/sbom -version $(VERSION) -sbom $(STAGE)/sbom.cdx.json -licenses $(STAGE)/THIRD_PARTY_LICENSES \
		bin/mig-exporter bin/migctl

DEB_VERSION ?= $(VERSION)
DEB_ARCH    ?= $(shell go env GOARCH)
DEB_BIN     ?= bin
DIST        ?= dist
.PHONY: deb
deb: stage $(NFPM) ## build dist/mig-exporter_VERSION_ARCH.deb
	@mkdir -p $(DIST)
	DEB_VERSION='$(DEB_VERSION)' DEB_ARCH=$(DEB_ARCH) DEB_BIN=$(DEB_BIN) DEB_STAGE=$(STAGE) \
		$(NFPM) package --config deploy/deb/nfpm.yaml --packager deb \
		--target $(DIST)/mig-exporter_$(DEB_VERSION)_$(DEB_ARCH).deb

.PHONY: rpm
rpm: stage $(NFPM) ## build dist/mig-exporter-VERSION-1.ARCH.rpm
	@mkdir -p $(DIST)
	DEB_VERSION='$(DEB_VERSION)' DEB_ARCH=$(DEB_ARCH) DEB_BIN=$(DEB_BIN) DEB_STAGE=$(STAGE) \
		$(NFPM) package --config deploy/deb/nfpm.yaml --packager rpm --target $(DIST)/

# The date is a label only if it is known: it has to be one by RFC 3339.
ENGINE ?= docker
IMAGE  ?= mig-exporter:$(VERSION)
DCGM   ?=
.PHONY: image
image: ## build the container image IMAGE (mig-exporter:VERSION) with ENGINE (docker); DCGM=FOLDER has NVIDIA's packages
	$(ENGINE) build --build-arg REVISION='$(REVISION)' --build-arg BRANCH='$(BRANCH)' --build-arg DATE='$(DATE)' \
		--build-arg SOURCE_DATE_EPOCH='$(SOURCE_DATE_EPOCH)' --build-arg DCGM='$(DCGM)' \
		$(if $(filter-out unknown,$(DATE)),--label org.opencontainers.image.created='$(DATE)') $(ARGS) -t '$(IMAGE)' .

.PHONY: dist
dist: stage $(NFPM) $(HELM) ## make a release in dist: archives and packages for amd64 and arm64, chart, SBOM, checksums, notes
	VERSION='$(VERSION)' LDFLAGS='$(LDFLAGS)' DIST='$(DIST)' NFPM='$(NFPM)' HELM='$(HELM)' deploy/dist.sh

# Apart from make test: it builds the packager and the package twice. CI runs both if its caches are warm.
.PHONY: test-packages
test-packages: toolchain ## check systemd's units, Slurm's scripts, the package in a clean root and the image's root file system
	@echo "==> systemd's units, Slurm's scripts, the Debian package in a clean root, the image's root file system"
	@rm -rf bin/debs
	@$(MAKE) --no-print-directory deb rpm DIST=bin/debs >/dev/null
	@$(MAKE) --no-print-directory deb DIST=bin/debs DEB_VERSION=$(VERSION)+next >/dev/null
	TEST_RPM="$$(echo "$(CURDIR)"/bin/debs/*.rpm)" \
	TEST_DEB="$(CURDIR)/bin/debs/mig-exporter_$(VERSION)_$(DEB_ARCH).deb" \
		TEST_NEXT_DEB="$(CURDIR)/bin/debs/mig-exporter_$(VERSION)+next_$(DEB_ARCH).deb" \
		go test -count=1 -v -timeout $(TEST_TIMEOUT) ./deploy

.PHONY: fmt
fmt: toolchain ## format the code
	gofmt -w .

.PHONY: clean
clean: ## remove what was built, the linter included
	rm -rf bin dist .bin

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS="$$(printf '\t')" read -r target text; do \
		printf '%-20s %s\n' "$$target" "$$text"; done

.PHONY: toolchain
toolchain:
	@command -v go >/dev/null || { echo "go is missing: install Go $(GO_MIN) or later from https://go.dev/dl/ and put it on PATH"; exit 1; }
	@have=$$(go env GOVERSION | sed 's/^go//'); printf '%s\n' $(GO_MIN) "$$have" | sort -V -C || \
		{ echo "Go $(GO_MIN) or later is needed, this is $${have:-unknown} ($$(command -v go)): see https://go.dev/dl/"; exit 1; }
	@command -v "$$(go env CC | cut -d' ' -f1)" >/dev/null || \
		{ echo "a C compiler is missing (the NVML binding needs cgo): on Debian, apt-get install gcc libc6-dev"; exit 1; }

# Reinstalled if the version is another one.
ifneq ($(shell $(LINT) version --short 2>/dev/null),$(LINT_VERSION))
.PHONY: $(LINT)
endif
$(LINT): | toolchain
	GOBIN="$(CURDIR)/.bin" go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(LINT_VERSION)

ifneq ($(shell go version -m $(NFPM) 2>/dev/null | awk '$$1 == "mod" { print $$3 }'),v$(NFPM_VERSION))
.PHONY: $(NFPM)
endif
$(NFPM): | toolchain
	GOBIN="$(CURDIR)/.bin" GOFLAGS= CGO_ENABLED=0 go install github.com/goreleaser/nfpm/v2/cmd/nfpm@v$(NFPM_VERSION)

ifneq ($(patsubst v%,%,$(shell $(HELM) version --template '{{.Version}}' 2>/dev/null)),$(HELM_VERSION))
.PHONY: $(HELM)
endif
$(HELM): | toolchain
	GOBIN="$(CURDIR)/.bin" go install -ldflags '$(HELM_LDFLAGS)' helm.sh/helm/v3/cmd/helm@v$(HELM_VERSION)
