package spec

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseLimits checks the limits, and returns the memory in bytes.
func (l Limits) ParseLimits() (memory uint64, err error) {
	if l.Processes < 0 {
		return 0, fmt.Errorf("--processes %d: it can't be negative", l.Processes)
	}
	if l.CPUs < 0 || math.IsNaN(l.CPUs) || math.IsInf(l.CPUs, 0) || l.CPUs > 0 && l.CPUs < 0.01 || l.CPUs > 10000 {
		return 0, fmt.Errorf("--cpus %v: it is a number of processors from 0.01, such as 1.5", l.CPUs)
	}
	if l.Memory == "" {
		return 0, nil
	}
	n, err := ParseSize(l.Memory)
	const least = 16 << 20
	if err != nil || n < least {
		return 0, fmt.Errorf("--memory %q: it is a number of bytes with K, M, G or T behind it, 16M at least, such as 512M", l.Memory)
	}
	return uint64(n), nil
}

// ParseSize reads a number of bytes, with K, M, G or T behind it or nothing.
func ParseSize(text string) (int64, error) {
	digits, unit := text, int64(1)
	for suffix, size := range map[string]int64{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			digits, unit = rest, size
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || n == 0 || int64(n) > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q is no number of bytes, with K, M, G or T behind it, such as 512M", text)
	}
	return int64(n) * unit, nil
}
