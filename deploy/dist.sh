#!/bin/bash
# Makes a release: for linux/amd64 and linux/arm64 an archive and packages, then the Helm chart, checksums and
# upgrade notes. `make dist` starts it, with VERSION, LDFLAGS, DIST, NFPM and HELM in the environment; `make stage` has made
# what is the same for both. With an argument it does one step: clear, chart, notes.
set -euo pipefail
umask 022

# build ARCH builds the programs; other architectures need Debian's cross compiler.
build() {
	local arch=$1 bin=bin/release/$1 cc
	cc=$(go env CC)
	if [[ $arch != "$(go env GOHOSTARCH)" ]]; then
		case $arch in
		arm64) cc=aarch64-linux-gnu-gcc ;;
		amd64) cc=x86_64-linux-gnu-gcc ;;
		esac
		command -v "$cc" >/dev/null || {
			echo "dist: $cc is missing: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross" >&2
			exit 1
		}
	fi
	mkdir -p "$bin"
	GOOS=linux GOARCH=$arch CC=$cc go build -trimpath -ldflags "$LDFLAGS" -o "$bin/" ./cmd/mig-exporter ./cmd/migctl
	start "$arch" "$bin"
}

# start starts the programs of an architecture, under qemu where it is another one.
start() {
	local arch=$1 bin=$2 runner=()
	if [[ $arch != "$(go env GOHOSTARCH)" ]]; then
		if [[ $arch != arm64 ]] || ! command -v qemu-aarch64-static >/dev/null; then
			echo "dist: NOT STARTED: the programs for $arch, since qemu-aarch64-static is missing (qemu-user-static)"
			return
		fi
		runner=(qemu-aarch64-static -L /usr/aarch64-linux-gnu)
	fi
	local program
	for program in mig-exporter migctl; do
		"${runner[@]}" "$bin/$program" --version 2>&1 | grep -F "$VERSION" ||
			{ echo "dist: $program for $arch does not start" >&2; exit 1; }
	done
	"${runner[@]}" "$bin/mig-exporter" check-config
}

# pack ARCH makes the archive and the packages.
pack() {
	local arch=$1 bin=bin/release/$1 name=mig-exporter-$VERSION.linux-$1
	local stage=bin/release/stage-$arch tree=bin/release/$name
	rm -rf "$stage" "$tree"
	cp -r bin/stage "$stage"
	go run ./cmd/sbom -version "$VERSION" -sbom "$stage/sbom.cdx.json" -licenses "$stage/THIRD_PARTY_LICENSES" \
		"$bin/mig-exporter" "$bin/migctl"
	mkdir -p "$tree"/{man,completion,prometheus,dashboards,docs}
	cp "$bin/mig-exporter" "$bin/migctl" LICENSE "$stage"/{THIRD_PARTY_LICENSES,sbom.cdx.json} "$tree"
	absolute <README.md >"$tree/README.md"
	absolute <CHANGELOG.md >"$tree/CHANGELOG.md"
	cp docs/*.md "$tree/docs"
	cp "$stage"/*.1.gz "$tree/man"
	cp "$stage"/*.bash "$stage"/*.zsh "$stage"/*.fish "$tree/completion"
	cp -r deploy/systemd deploy/slurm deploy/node-problem-detector "$tree"
	cp -r deploy/prometheus/*.rules.yaml deploy/prometheus/optional "$tree/prometheus"
	cp -r dashboards/*.json dashboards/provisioning "$tree/dashboards"
	archive bin/release "$name" >"$DIST/$name.tar.gz"
	cp "$stage/sbom.cdx.json" "$DIST/$name.cdx.json"
	DEB_VERSION=$VERSION DEB_ARCH=$arch DEB_BIN=$bin DEB_STAGE=$stage \
		"$NFPM" package --config deploy/deb/nfpm.yaml --packager deb --target "$DIST/mig-exporter_${VERSION}_$arch.deb"
	DEB_VERSION=$VERSION DEB_ARCH=$arch DEB_BIN=$bin DEB_STAGE=$stage \
		"$NFPM" package --config deploy/deb/nfpm.yaml --packager rpm --target "$DIST/"
}

# archive FOLDER NAME prints an archive of NAME in FOLDER, which is the same whenever it is made.
archive() {
	tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
		-C "$1" -c "$2" | gzip -9n
}

# chart packages the Helm chart. Helm gives its files the present time, so they are packed again.
chart() {
	local work=bin/release/chart package
	rm -rf "$work"
	mkdir -p "$work/tree"
	"$HELM" package --destination "$work" deploy/helm/mig-exporter
	package=$(cd "$work" && ls -- *.tgz)
	tar -xz -C "$work/tree" -f "$work/$package"
	archive "$work/tree" mig-exporter >"$DIST/$package"
}

# clear empties the folder of the release. It refuses one with files that are not of a release.
clear() {
	local file
	local -a files=()
	mkdir -p "$DIST"
	while IFS= read -r -d '' file; do
		case ${file##*/} in
		mig-exporter-*.linux-*.tar.gz | mig-exporter-*.cdx.json | mig-exporter[-_]*.deb | mig-exporter-*.rpm | mig-exporter-*.tgz) ;;
		RELEASE_NOTES.md | sha256sums.txt) ;;
		*)
			echo "dist: $file is not of a release: expected DIST to be a folder of its own" >&2
			exit 1
			;;
		esac
		files+=("$file")
	done < <(find "$DIST" -mindepth 1 -maxdepth 1 -print0)
	rm -f -- "${files[@]}"
}

# absolute makes links into the repository absolute, for texts that leave it.
absolute() {
	sed -E 's|\]\(([^):#][^):]*)\)|](https://github.com/mig-exporter/mig-exporter/blob/main/\1)|g'
}

# notes prints what has changed in this version, or since the last one, by CHANGELOG.md: first what an upgrade has to look
# at.
notes() {
	awk -v version="$VERSION" '
		function entries(kind) { sub(/\n\n+$/, "\n", text[section, kind]); return text[section, kind] }
		/^## / { section = $2; kind = ""; next }
		/^### / { kind = ""; next }
		/^\* \[/ { kind = ($0 ~ /^\* \[CHANGE\]/) ? "change" : "other" }
		kind && section { text[section, kind] = text[section, kind] $0 "\n" }
		END {
			section = (version, "change") in text || (version, "other") in text ? version : "Unreleased"
			printf "# mig-exporter %s\n\n## Before you upgrade\n\n%s\n## All else\n\n%s", version,
				entries("change") ? entries("change") : "Nothing needs your attention.\n", entries("other")
		}' CHANGELOG.md | absolute
}

case ${1:-all} in
clear | chart | notes) "$1" ;;
all)
	clear
	for arch in amd64 arm64; do
		build "$arch"
		pack "$arch"
	done
	chart
	notes >"$DIST/RELEASE_NOTES.md"
	(cd "$DIST" && sha256sum -- * >sha256sums.txt)
	ls -l "$DIST"
	;;
*)
	echo "dist: expected clear, chart, notes or no argument, got $1" >&2
	exit 2
	;;
esac
