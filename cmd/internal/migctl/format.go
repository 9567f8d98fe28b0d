package migctl

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/gpu"
	"github.com/mig-exporter/mig-exporter/internal/nodedoc"
)

// unknown stands for a reading that is absent.
const unknown = "-"

// formatGiB formats a number of bytes in GiB with three digits.
func formatGiB(b uint64) string {
	switch g := float64(b) / (1 << 30); {
	case g == 0:
		return "0"
	case g < 9.995:
		return fmt.Sprintf("%.2f", g)
	case g < 99.95:
		return fmt.Sprintf("%.1f", g)
	default:
		return fmt.Sprintf("%.0f", g)
	}
}

// memoryText formats memory as "used/total" in GiB.
func memoryText(m gpu.Memory) string {
	used := unknown
	total := unknown

	if b, ok := m.Used.Get(); ok {
		used = formatGiB(b)
	}

	if b, ok := m.Total.Get(); ok {
		total = formatGiB(b)
	}

	return used + "/" + total
}

func wattsText(w gpu.Opt[float64]) string {
	v, ok := w.Get()
	if !ok {
		return unknown + "W"
	}

	return fmt.Sprintf("%.0fW", v)
}

func celsiusText(t gpu.Opt[float64]) string {
	v, ok := t.Get()
	if !ok {
		return unknown + "C"
	}

	return fmt.Sprintf("%.0fC", v)
}

func percentText(r gpu.Opt[float64]) string {
	v, ok := r.Get()
	if !ok {
		return unknown
	}

	return fmt.Sprintf("%.0f%%", math.Round(100*v))
}

// modeText returns the MIG mode, "on" or "off", with an asterisk if another one is pending.
func modeText(m nodedoc.Mode) string {
	t := map[string]string{"enabled": "on", "disabled": "off", "": unknown}[m.Current]
	if m.Pending != "" && m.Pending != m.Current {
		t += "*"
	}

	return t
}

// shortUUID shortens a UUID to what tells the devices of one node apart: "GPU-5f65f8d5", or "MIG-../1/0"
// for a UUID of an old driver.
func shortUUID(uuid string) string {
	if old, ok := strings.CutPrefix(uuid, "MIG-GPU-"); ok {
		if _, ids, ok := strings.Cut(old, "/"); ok {
			return "MIG-../" + ids
		}
	}

	kind, rest, ok := strings.Cut(uuid, "-")
	if !ok {
		return uuid
	}

	first, _, _ := strings.Cut(rest, "-")

	return kind + "-" + first
}

// gpuTitle returns a line with a GPU's index, name and UUID.
func gpuTitle(p *page, index int, name string, uuid gpu.UUID) string {
	return fmt.Sprintf(
		"GPU %d  %s  %s",
		index,
		p.cut(p.clean(orUnknown(shortName(name))), 28),
		orUnknown(string(uuid)),
	)
}

func shortName(name string) string { return strings.TrimPrefix(name, "NVIDIA ") }

func orUnknown(s string) string {
	if s == "" {
		return unknown
	}

	return s
}

// placementText formats a placement as nvidia-smi does: 4:4.
func placementText(placement gpu.Opt[gpu.Placement]) string {
	if p, ok := placement.Get(); ok {
		return p.String()
	}

	return unknown
}

// placedProfile formats a profile with the start of its placement: 3g.20gb@4.
func placedProfile(profile string, placement gpu.Opt[gpu.Placement]) string {
	profile = orUnknown(profile)
	if p, ok := placement.Get(); ok {
		return fmt.Sprintf("%s@%d", profile, p.Start)
	}

	return profile
}

// devicesValue returns the value of --devices for a layout: "1g.10gb=4,3g.40gb=1", or "none".
func devicesValue(layout map[string]int) string {
	var items []string
	for _, profile := range sortedKeys(layout) {
		items = append(items, fmt.Sprintf("%s=%d", profile, layout[profile]))
	}

	return cmp.Or(strings.Join(items, ","), "none")
}

// QuoteForShell quotes a word for a POSIX shell. If the word has control characters or characters
// beyond ASCII, which a terminal may not show, it uses $'...', which bash, zsh and ksh understand.
func QuoteForShell(word string) string {
	const harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,+@%"
	isSpecial := func(r rune) bool { return !strings.ContainsRune(harmless, r) }
	isHidden := func(r rune) bool { return r < ' ' || r > '~' }

	switch {
	case word != "" && !strings.ContainsFunc(word, isSpecial):
		return word
	case !strings.ContainsFunc(word, isHidden):
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}

	var quoted strings.Builder
	quoted.WriteString("$'")

	for _, b := range []byte(word) {
		switch {
		case b == '\'' || b == '\\':
			quoted.WriteString(`\` + string(rune(b)))
		case b < ' ' || b > '~':
			fmt.Fprintf(&quoted, `\%03o`, b)
		default:
			quoted.WriteByte(b)
		}
	}

	return quoted.String() + "'"
}
