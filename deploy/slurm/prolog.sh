#!/bin/bash
# Slurm Prolog: writes the job into the file of each of its GPUs and GPU instances, for mig-exporter's
# --hpc.job-mapping-dir. epilog.sh takes it out again. Installation: docs/deploy-slurm.md.
#
# It always exits with 0: Slurm drains a node whose Prolog fails, and a missing label is no reason for that. What it cannot
# do is logged (journalctl -t mig-exporter-prolog).
trap 'exit 0' EXIT # whatever happens
script=prolog # in the log
self=$(readlink -f -- "${BASH_SOURCE[0]}")
# shellcheck source-path=SCRIPTDIR source=folder.sh
. "${self%/*}/folder.sh" || { logger -t mig-exporter-prolog "folder.sh is missing beside $self"; exit 0; }

# For tests.
nvidia_smi=${NVIDIA_SMI:-nvidia-smi}
boot_id_file=${BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id}

# table prints how Slurm names the node's devices and the file of each: "GPU-<uuid> 3", "minor-2 3", "MIG-<uuid> 3.7" and,
# for GPUs with MIG devices, "split 3". It takes three listings: -L has the UUIDs of MIG devices, the plain table their GPU
# instances, -q the minor numbers.
table() {
	local uuids instances minors ask=(timeout -s KILL "$time_limit" "$nvidia_smi")
	uuids=$("${ask[@]}" -L) && instances=$("${ask[@]}") && minors=$("${ask[@]}" -q) || return 1
	printf '%s\n%s\n%s\n' "$uuids" "$instances" "$minors" | awk '
		function uuid(line) { sub(/.*UUID: /, "", line); sub(/\).*/, "", line); return line }
		/^GPU [0-9]+: / { gpu = $2 + 0; print uuid($0), gpu; next }
		/^ +MIG .*Device +[0-9]+: / {
			device = $0; sub(/.*Device +/, "", device)
			of[gpu, device + 0] = uuid($0); print "split", gpu; next
		}
		/^\| +[0-9]+ +[0-9]+ +[0-9]+ +[0-9]+ +\|/ { # GPU, GPU instance, compute instance, device
			if (($2 + 0, $5 + 0) in of) print of[$2 + 0, $5 + 0], $2 + 0 "." $3 + 0
		}
		/^GPU [0-9A-Fa-f]+:[0-9A-Fa-f]+:/ { count++ } # in the order of their indices
		/^ +Minor Number +: [0-9]+ *$/ { print "minor-" $NF, count - 1 }
	'
}

# file_of prints the file of a device as Slurm names it: a UUID, or the number of /dev/nvidia<number>.
file_of() {
	local -a legacy
	case $1 in
	MIG-GPU-*/*/*) # before driver 470: MIG-GPU-<uuid>/<GPU instance>/<compute instance>
		IFS=/ read -ra legacy <<<"${1#MIG-}"
		[[ ${legacy[1]} =~ ^[0-9]+$ && -n ${file[${legacy[0]}]:-} ]] && echo "${file[${legacy[0]}]}.${legacy[1]}"
		;;
	GPU-* | MIG-*) [[ -n ${file[$1]:-} ]] && echo "${file[$1]}" ;;
	*)
		[[ $1 =~ ^[0-9]{1,4}$ ]] || return
		local gpu=${file[minor-$1]:-}
		if ((!known)); then
			echo "$1"
		elif [[ -n $gpu && -z ${split[$gpu]:-} ]]; then # the number of a MIG device is no GPU's
			echo "$gpu"
		fi
		;;
	esac
}

visible=${CUDA_VISIBLE_DEVICES:-}
# Slurm 25.11 and MIG have UUIDs there. Otherwise the numbers of SLURM_JOB_GPUS count; jobs with shards or MPS have none.
[[ $visible == *[GM][PI][UG]-* ]] || visible=${SLURM_JOB_GPUS:-$visible}
if [[ ! $job =~ ^[0-9]{1,20}$ ]]; then
	[[ -z $visible ]] || note "SLURM_JOB_ID is no number: nothing is written"
	exit 0
fi
[[ -n $visible && $visible != NoDevFiles ]] || exit 0

dir=$(folder)
trusted "$dir" || exit 0

declare -A file=() split=()
known=1
# A process inside a driver call that hangs cannot be killed, so it must not be waited for. After its time it is left behind,
# without the script's own output, which slurmd may read to its end. A NUL ends the table.
if ! IFS= read -r -d '' -t "$time_limit" lines < <(exec </dev/null 2>/dev/null && table && printf '\0'); then
	known=0
	lines=
	note "nvidia-smi does not answer: numbers are taken for indices of GPUs"
fi
while read -r key value; do
	case $key in
	"") ;;
	split) split[$value]=1 ;;
	*) file[$key]=$value ;;
	esac
done <<<"$lines"

enter "$dir" || exit 0
boot=$(cat "$boot_id_file")
readable .boot || rm -rf .boot
if [[ $boot != "$(cat .boot 2>/dev/null)" ]]; then # jobs of another boot have ended without an epilog
	list
	rm -f -- ${files[@]+"${files[@]}"}
	replace .boot <<<"$boot"
fi
forget # it may have been requeued
IFS=, read -ra devices <<<"$visible"
for device in ${devices[@]+"${devices[@]}"}; do
	name=$(file_of "$device")
	if [[ -z $name ]]; then
		note "device $(printf %q "$device") is not on this node"
		continue
	fi
	{
		! readable "$name" || grep -vxF -- "$job" "$name" # two devices of one GPU instance
		printf '%s\n' "$job"
	} | replace "$name"
done
exit 0
