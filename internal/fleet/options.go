package fleet

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/mig-exporter/mig-exporter/internal/advise"
	"github.com/mig-exporter/mig-exporter/internal/mig"
)

// Options are what an operator asks for.
type Options struct {
	// Window is the length of the history that we read, up to End.
	Window time.Duration
	End    time.Time
	// Match are label matchers such as cluster="a", which we add to every selector.
	Match []string
	// ClusterLabel is the label that names a GPU's cluster.
	ClusterLabel string
	Prices       []Price
	Advise       advise.Options
	// Progress, if not nil, receives the number of GPUs that are done. One goroutine at a time calls
	// it.
	Progress func(done, total int)
}

// Price is what an hour of a GPU costs.
type Price struct {
	Model string  // words of the model's name: H100, A100-80GB
	Hour  float64 // in any currency
}

// Bounds of the window. A shorter one has no evidence. In a longer one, a series could have more
// points than Prometheus returns (11,000).
const (
	minWindow = time.Hour
	maxWindow = 35 * 24 * time.Hour
)

// Validate returns an error that names the first option out of its range.
func (o *Options) Validate() error {
	if o.Window < minWindow || o.Window > maxWindow {
		return fmt.Errorf("--window is %s; expected 1h to 35d", model.Duration(o.Window))
	}

	if o.Window%time.Hour != 0 {
		return fmt.Errorf("--window is %s; expected whole hours", model.Duration(o.Window))
	}

	if !model.LegacyValidation.IsValidLabelName(o.ClusterLabel) {
		return fmt.Errorf(
			"--cluster-label is %q; expected the name of a label, as in cluster",
			o.ClusterLabel,
		)
	}

	for _, m := range o.Match {
		if err := checkMatchers(m); err != nil {
			return err
		}
	}

	if err := checkPrices(o.Prices); err != nil {
		return err
	}

	if err := o.Advise.Validate(); err != nil {
		return fmt.Errorf("--%w", err)
	}

	return nil
}

// ParsePrice reads a price such as H100=2.50.
func ParsePrice(text string) (Price, error) {
	name, number, ok := strings.Cut(text, "=")

	hour, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(hour >= 0) || math.IsInf(hour, 0) || len(mig.NameWords(name)) == 0 {
		return Price{}, fmt.Errorf("--price is %q; expected MODEL=NUMBER, as in H100=2.50", text)
	}

	return Price{Model: name, Hour: hour}, nil
}

// ParsePrices reads prices. Two prices for the same model are an error.
func ParsePrices(texts []string) ([]Price, error) {
	prices := make([]Price, 0, len(texts))
	for _, text := range texts {
		price, err := ParsePrice(text)
		if err != nil {
			return nil, err
		}

		prices = append(prices, price)
	}

	return prices, checkPrices(prices)
}

// checkPrices returns an error if a price is invalid, or if two are for the same model.
func checkPrices(prices []Price) error {
	priced := map[string]string{}

	for _, p := range prices {
		if !(p.Hour >= 0) || math.IsInf(p.Hour, 0) || len(mig.NameWords(p.Model)) == 0 {
			return fmt.Errorf(
				"--price is %s=%v; expected a model and a number from 0 on, as in H100=2.50",
				p.Model,
				p.Hour,
			)
		}

		name := strings.Join(mig.NameWords(p.Model), " ")
		if other, twice := priced[name]; twice {
			return fmt.Errorf(
				"--price has %q and %q; expected one price for each model",
				other,
				p.Model,
			)
		}

		priced[name] = p.Model
	}

	return nil
}

// checkMatchers returns an error unless a text is a list of label matchers, separated by commas: we
// put it into queries as it is.
func checkMatchers(text string) error {
	wrong := fmt.Errorf(
		"--match is %q; expected label matchers of PromQL, as in cluster=\"a\",env!~\"test|dev\"",
		text,
	)

	start := regexp.MustCompile(`^\s*[a-zA-Z_][a-zA-Z0-9_]*\s*(=~|!~|!=|=)\s*`)
	for rest := text; ; {
		head := start.FindString(rest)
		if head == "" {
			return wrong
		}

		value, err := strconv.QuotedPrefix(rest[len(head):])
		if err != nil || value[0] != '"' {
			return wrong
		}

		pattern, err := strconv.Unquote(value)
		if err != nil {
			return wrong
		}

		if strings.Contains(head, "~") {
			if _, err := regexp.Compile(pattern); err != nil {
				return fmt.Errorf("--match is %q: %w", text, err)
			}
		}

		rest = strings.TrimSpace(rest[len(head)+len(value):])
		if rest == "" {
			return nil
		}

		if !strings.HasPrefix(rest, ",") {
			return wrong
		}

		rest = rest[1:]
	}
}
