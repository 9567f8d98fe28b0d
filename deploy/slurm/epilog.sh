#!/bin/bash
# Slurm Epilog: takes the job out of the files that prolog.sh has written. It looks into all files, since an Epilog need not
# be told which GPUs the job had, and it exits with 0 always, since Slurm drains a node whose Epilog fails.
trap 'exit 0' EXIT # whatever happens
script=epilog # in the log
self=$(readlink -f -- "${BASH_SOURCE[0]}")
# shellcheck source-path=SCRIPTDIR source=folder.sh
. "${self%/*}/folder.sh" || { logger -t mig-exporter-epilog "folder.sh is missing beside $self"; exit 0; }

[[ $job =~ ^[0-9]{1,20}$ ]] || exit 0
dir=$(folder)
if [[ -d $dir ]] && trusted "$dir" && enter "$dir"; then
	forget
fi
exit 0
