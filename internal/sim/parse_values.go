package sim

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Numbers in scenarios that are bounded or have a unit. The error of each UnmarshalText says what it
// expected, such as "a number from 0 to 1".
type (
	memorySize  float64 // bytes, or bytes per second
	share       float64 // 0-1
	smCount     float64
	engineCount float64       // media engines of one kind
	clockOffset time.Duration // forward, or backward if negative; not 0

	reachableShare float64 // a share of the memory bandwidth, 0 to kernels.Reachable
	requestsPerSec float64
	requestCount   float64
	tokenCount     float64
)

// UnmarshalText reads a size such as 512MiB.
func (s *memorySize) UnmarshalText(text []byte) error {
	units := []struct {
		name  string
		bytes float64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}
	for _, u := range units {
		if digits, ok := strings.CutSuffix(string(text), u.name); ok {
			if v, ok := parseFinite(strings.TrimSpace(digits)); ok && v >= 0 && v*u.bytes <= 1<<50 {
				*s = memorySize(math.Floor(v * u.bytes))
				return nil
			}

			break
		}
	}

	return errors.New("a size such as 512MiB or 6GiB")
}

// UnmarshalText reads a number from 0 to 1.
func (s *share) UnmarshalText(text []byte) error { return parseNumber(text, 1, (*float64)(s)) }

// UnmarshalText reads a number of SMs.
func (c *smCount) UnmarshalText(text []byte) error { return parseNumber(text, 1e6, (*float64)(c)) }

// UnmarshalText reads a number of media engines.
func (c *engineCount) UnmarshalText(text []byte) error {
	return parseNumber(text, 64, (*float64)(c))
}

// UnmarshalText reads a number of requests.
func (c *requestCount) UnmarshalText(text []byte) error {
	return parseNumber(text, 1e6, (*float64)(c))
}

// UnmarshalText reads a number of tokens.
func (c *tokenCount) UnmarshalText(text []byte) error {
	return parseNumber(text, 1e9, (*float64)(c))
}

// parseNumber reads a number from 0 to a highest value.
func parseNumber(text []byte, highest float64, into *float64) error {
	v, ok := parseFinite(string(text))
	if !ok || v < 0 || v > highest {
		return fmt.Errorf("a number from 0 to %g", highest)
	}

	*into = v

	return nil
}

func parseFinite(s string) (float64, bool) {
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)
}

// UnmarshalText reads a duration, which can be negative.
func (o *clockOffset) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v == 0 || v.Abs() > maxDuration {
		return errors.New("a duration such as 10m or -10m")
	}

	*o = clockOffset(v)

	return nil
}
