#!/bin/bash
# Makes a release: for linux/amd64 and linux/arm64 an archive and a Debian package, then checksums and upgrade notes. `make
# dist` starts it, with VERSION, LDFLAGS, DIST and NFPM in the environment; `make stage` has made what is the same for both.
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

# pack ARCH makes the archive and the Debian package.
pack() {
	local arch=$1 bin=bin/release/$1 name=mig-exporter-$VERSION.linux-$1
	local stage=bin/release/stage-$arch tree=bin/release/$name
	rm -rf "$stage" "$tree"
	cp -r bin/stage "$stage"
	go run ./cmd/sbom -version "$VERSION" -sbom "$stage/sbom.cdx.json" -licenses "$stage/THIRD_PARTY_LICENSES" \
		"$bin/mig-exporter" "$bin/migctl"
	mkdir -p "$tree"/{man,completion,prometheus,dashboards}
	cp "$bin/mig-exporter" "$bin/migctl" LICENSE CHANGELOG.md README.md "$stage"/{THIRD_PARTY_LICENSES,sbom.cdx.json} "$tree"
	cp "$stage"/*.1.gz "$tree/man"
	cp "$stage"/*.bash "$stage"/*.zsh "$tree/completion"
	cp -r deploy/systemd deploy/slurm "$tree"
	cp deploy/prometheus/*.rules.yaml "$tree/prometheus"
	cp -r dashboards/*.json dashboards/provisioning "$tree/dashboards"
	tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
		-C bin/release -c "$name" | gzip -9n >"$DIST/$name.tar.gz"
	cp "$stage/sbom.cdx.json" "$DIST/$name.cdx.json"
	DEB_VERSION=$VERSION DEB_ARCH=$arch DEB_BIN=$bin DEB_STAGE=$stage \
		"$NFPM" package --config deploy/deb/nfpm.yaml --packager deb --target "$DIST/mig-exporter_${VERSION}_$arch.deb"
}

# notes prints what has changed in this version, by CHANGELOG.md: first what an upgrade has to look at.
notes() {
	awk -v version="$VERSION" '
		/^## / { here = index($0, "## " version) == 1 || $2 == "Unreleased" && !seen; seen = seen || here; next }
		!here { next }
		/^\* \[/ { kind = ($0 ~ /^\* \[CHANGE\]/) ? "change" : "other" }
		{ text[kind] = text[kind] $0 "\n" }
		END {
			printf "# mig-exporter %s\n\n## Before you upgrade\n\n%s\n## All else\n\n%s", version,
				text["change"] ? text["change"] : "Nothing needs your attention.\n", text["other"]
		}' CHANGELOG.md
}

rm -rf "$DIST"
mkdir -p "$DIST"
for arch in amd64 arm64; do
	build "$arch"
	pack "$arch"
done
notes >"$DIST/RELEASE_NOTES.md"
(cd "$DIST" && sha256sum -- * >sha256sums.txt)
ls -l "$DIST"
