package migctl

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/mig-exporter/mig-exporter/internal/control/api"
)

// releaseGPUs releases GPUs or opens them again, as the command says, one after the other. It stops
// at the first refusal.
func (s *session) releaseGPUs(ctx context.Context) error {
	for _, selector := range s.opts.GPUs {
		var done api.Release

		path := "/gpus/" + url.PathEscape(selector) + "/" + s.opts.Command

		err := s.client.sendDocument(ctx, http.MethodPost, path, nil, newKey(), &done)
		if err != nil {
			return fmt.Errorf("%s GPU %s: %w", s.opts.Command, selector, err)
		}

		s.page.line(text("%s", done.GPU).in(bold))

		took := time.Duration(done.Seconds * float64(time.Second)).Round(time.Millisecond)
		switch {
		case done.Closed != "":
			s.page.paragraph(
				"  ! ",
				yellow,
				"no GPU of this node is read until this one is reacquired, or unbound: "+done.Closed,
			)
		case done.Seconds == 0 && done.Released:
			s.page.paragraph("  ", green, "it is released already: NVML stayed open")
		case done.Seconds == 0:
			s.page.paragraph("  ", green, "it is not released: NVML stayed open")
		case done.Released:
			s.page.paragraph(
				"  ",
				green,
				fmt.Sprintf("released: the exporter has closed it. NVML was closed for %s", took),
			)
		default:
			s.page.paragraph(
				"  ",
				green,
				fmt.Sprintf("not released any more. NVML was closed for %s", took),
			)
		}
	}

	return nil
}
