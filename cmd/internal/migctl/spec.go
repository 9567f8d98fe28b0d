package migctl

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
	"github.com/mig-exporter/mig-exporter/internal/control/spec"
)

func (o *specOptions) isEmpty() bool {
	return o.File == "" && o.Layout == "" && len(o.GPUs) == 0 && len(o.Devices) == 0 &&
		len(o.Demand) == 0
}

// maxSpecFile bounds the file of -f, in bytes. It is larger than the specs that the server takes: a
// file can have many named layouts, of which one is sent.
const maxSpecFile = 4 << 20

// planRequest returns the request for a plan. It refuses a wrong spec without asking the server.
func (s *session) planRequest(ctx context.Context) (api.PlanRequest, error) {
	o := &s.opts.Spec
	if err := s.completeSpec(ctx); err != nil {
		return api.PlanRequest{}, err
	}

	r := api.PlanRequest{Force: o.Force, TakeOver: s.opts.TakeOver}

	data, err := o.specDocument(s.in)
	if err != nil {
		return r, err
	}

	if r.Spec, err = spec.DecodeLayout(data, o.Layout); err != nil {
		from := "the spec of the command line"
		if o.File != "" {
			from = o.File
		}

		return r, usageError{fmt.Sprintf("%s: %v", from, err)}
	}

	return r, nil
}

// specDocument returns the spec as a JSON or YAML document: the file of -f, or one made of the
// flags. --layout is left to the caller.
func (o *specOptions) specDocument(in io.Reader) ([]byte, error) {
	flags := len(o.GPUs) + len(o.Devices) + len(o.Demand)
	switch {
	case o.File != "" && flags > 0:
		return nil, usageError{
			"-f has the whole spec: give no --gpus, --devices or --demand beside it",
		}
	case o.File != "":
		return readSpec(o.File, in)
	case o.Layout != "" && flags > 0, len(o.Demand) > 0 && flags > len(o.Demand):
		return nil, usageError{
			"--layout, --gpus with --devices, and --demand are three ways to say it: choose one",
		}
	case o.Layout != "":
		return []byte("{}"), nil
	case len(o.Demand) > 0:
		needs, err := parseDemand(o.Demand)
		if err != nil {
			return nil, err
		}

		return json.Marshal(map[string]any{"demand": needs})
	case len(o.GPUs) == 0:
		return nil, usageError{"--devices needs --gpus: the GPUs to give this layout, or all"}
	case len(o.Devices) == 0:
		return nil, usageError{
			"--gpus needs --devices: PROFILE=COUNT,..., or none for no instances",
		}
	}

	devices, err := parseDevices(o.Devices)
	if err != nil {
		return nil, err
	}

	return json.Marshal(map[string]any{"gpus": o.GPUs, "devices": devices})
}

func readSpec(name string, in io.Reader) ([]byte, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, usageError{fmt.Sprintf("-f: %v", err)}
		}
		defer f.Close()
		in = f
	}

	data, err := io.ReadAll(io.LimitReader(in, maxSpecFile+1))
	if err != nil {
		return nil, usageError{fmt.Sprintf("-f %s: %v", name, err)}
	}

	if len(data) > maxSpecFile {
		return nil, usageError{fmt.Sprintf("-f %s: longer than %d bytes", name, maxSpecFile)}
	}

	return data, nil
}

// parseDevices parses PROFILE=COUNT,... or the word none, which means no instances.
func parseDevices(words []string) (map[string]int, error) {
	devices := map[string]int{}

	all := splitCommas(words)
	if len(all) == 1 && all[0] == "none" {
		return devices, nil
	}

	for _, w := range all {
		profile, count, ok := strings.Cut(w, "=")

		n, err := strconv.Atoi(count)
		if _, twice := devices[profile]; !ok || profile == "" || err != nil || n < 1 || twice {
			return nil, usageError{
				fmt.Sprintf(
					"--devices %q: expected each profile once, with a count: 1g.10gb=4,3g.40gb=1; or none",
					w,
				),
			}
		}

		devices[profile] = n
	}

	return devices, nil
}

// parseDemand parses words such as memory=12GiB,sms=20,count=3. Each word is one need of the spec's
// demand.
func parseDemand(words []string) ([]map[string]any, error) {
	var needs []map[string]any

	for _, w := range words {
		need := map[string]any{"count": 1}

		for _, part := range strings.Split(w, ",") {
			key, value, _ := strings.Cut(part, "=")
			number, err := strconv.Atoi(value)

			switch {
			case key == "memory":
				// The API takes a plain number of bytes, too. An operator who types one means GiB.
				if _, wrong := api.ParseBytes(value); wrong != nil || err == nil {
					return nil, usageError{fmt.Sprintf(
						"--demand %q: memory is %q; expected a whole number with its unit, such as 12GiB or 20GB", w, value)}
				}

				need[key] = value
			case (key == "sms" || key == "count") && err == nil && number >= 0:
				need[key] = number
			default:
				return nil, usageError{fmt.Sprintf(
					"--demand %q: %q is not one of memory=12GiB, sms=20, count=3", w, part)}
			}
		}

		needs = append(needs, need)
	}

	return needs, nil
}

// splitCommas splits each word at its commas.
func splitCommas(words []string) []string {
	var all []string

	for _, w := range words {
		for _, part := range strings.Split(w, ",") {
			if part = strings.TrimSpace(part); part != "" {
				all = append(all, part)
			}
		}
	}

	return all
}
