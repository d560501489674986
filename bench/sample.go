package main

import (
	"fmt"
	"slices"
	"time"

	"link.internal/lnk/integration/testnet"
)

// sample is what is kept of a number of runs.
type sample struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`  // the first quartile
	High   float64 `json:"high"` // the third
	N      int     `json:"n"`
}

func sampleOf(values []float64) sample {
	slices.Sort(values)
	n := len(values)
	return sample{values[n/2], values[n/4], values[n*3/4], n}
}

func (s sample) in(unit string) string {
	if s.N < 2 {
		return digits(s.Median) + " " + unit
	}
	return fmt.Sprintf("%s %s (%s to %s)", digits(s.Median), unit, digits(s.Low), digits(s.High))
}

// contender is one of several ways to have the same done.
type contender struct {
	name string
	run  func() (float64, error)
}

// inTurn has each do it in turn, n times and once before to warm up, so that
// all have the machine at the same speeds.
func inTurn(n int, ours func() (float64, error), others ...contender) (*sample, []beside, error) {
	values, ratios := make([][]float64, len(others)+1), make([][]float64, len(others))
	for i := range n + 1 {
		first, err := ours()
		if err != nil {
			return nil, nil, err
		}
		if i > 0 {
			values[0] = append(values[0], first)
		}
		for k, other := range others {
			v, err := other.run()
			if err != nil {
				return nil, nil, fmt.Errorf("%s: %w", other.name, err)
			}
			if i > 0 {
				values[k+1], ratios[k] = append(values[k+1], v), append(ratios[k], first/v)
			}
		}
	}
	s := sampleOf(values[0])
	var rest []beside
	for k, other := range others {
		rest = append(rest, beside{other.name, sampleOf(values[k+1]), sampleOf(ratios[k]).Median})
	}
	return &s, rest, nil
}

// repeated runs it n times, and once before to warm up.
func repeated(n int, run func() (float64, error)) (*sample, error) {
	s, _, err := inTurn(n, run)
	return s, err
}

// timed returns how long a command takes, in milliseconds.
func timed(name string, args ...string) func() (float64, error) {
	return func() (float64, error) {
		cmd := testnet.Command(name, args...)
		start := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("%s %v: %w: %s", name, args, err, out)
		}
		return float64(time.Since(start).Microseconds()) / 1000, nil
	}
}
