#!/bin/bash
# Slurm Epilog: takes the job out of the files that prolog.sh has written. It looks into all files, since an Epilog need not
# be told which GPUs the job had, and it exits with 0 always, since Slurm drains a node whose Epilog fails.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C
umask 022
shopt -s nullglob

defaults=${MIG_EXPORTER_DEFAULTS:-/etc/default/mig-exporter} # for tests

note() {
	logger -t mig-exporter-epilog -- "job ${job:-unknown}: $*" 2>/dev/null || echo "mig-exporter-epilog: $*" >&2
}

job=${SLURM_JOB_ID:-}
[[ $job =~ ^[0-9]{1,20}$ ]] || exit 0
dir=${MIG_EXPORTER_HPC_JOB_MAPPING_DIR:-}
if [[ -z $dir && -r $defaults ]]; then
	dir=$(sed -n 's/^MIG_EXPORTER_HPC_JOB_MAPPING_DIR=["'\'']\{0,1\}\([^"'\'']*\).*/\1/p' "$defaults" | tail -n 1)
fi
dir=${dir:-/run/mig-exporter-jobs}
[[ -d $dir ]] || exit 0
if ! cd -- "$dir" || [[ ! -O . ]]; then
	note "folder $dir cannot be used"
	exit 0
fi

exec 9>.lock
if ! flock -w 15 9; then
	note "folder $dir is locked: the job stays in it until the next boot"
	exit 0
fi
for file in [0-9]*; do
	if [[ ! -f $file || -L $file ]] || ! grep -qxF -- "$job" "$file"; then
		continue
	fi
	if rest=$(grep -vxF -- "$job" "$file"); then
		printf '%s\n' "$rest" >.new && mv -f .new "$file"
	else
		rm -f "$file"
	fi
done
exit 0
