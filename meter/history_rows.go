package meter

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug/internal/saturate"
)

// peakLine is a row of the table of a peak. Its holders are of one component, hold the same number of bytes, and have
// names that differ only in the first number.
type peakLine struct {
	component Component
	name      string // with the numbers, as "layers.0–7"
	bytes     int64  // sum over the holders of the row
	holders   int
}

// numbered splits a name around its first number. ok is false for a name without one.
func numbered(name string) (before string, number int, after string, ok bool) {
	lo := strings.IndexAny(name, "0123456789")
	if lo < 0 {
		return name, 0, "", false
	}
	hi := lo
	for hi < len(name) && name[hi] >= '0' && name[hi] <= '9' {
		hi++
	}
	number, err := strconv.Atoi(name[lo:hi])
	if err != nil || strconv.Itoa(number) != name[lo:hi] {
		return name, 0, "", false
	}
	return name[:lo], number, name[hi:], true
}

// lines returns the rows of the table, the largest first: at most the given number, or all if rows is 0 or less. It
// also returns the number of the other holders and the sum of their bytes.
func (p *Moment) lines(rows int) (list []peakLine, others int, sum int64) {
	type key struct {
		Holding        // with what comes before the number
		after   string // the number
		number  bool   // there is one
	}
	groups := map[key][]int{}
	var order []key
	for _, h := range p.Holders {
		before, number, after, ok := numbered(h.Name)
		k := key{Holding{h.Component, before, h.Bytes}, after, ok}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], number)
	}
	for _, k := range order {
		numbers, line := groups[k], peakLine{component: k.Component, name: k.Name, holders: len(groups[k])}
		if slices.Sort(numbers); k.number {
			line.name += ranges(numbers) + k.after
		}
		for range numbers {
			line.bytes = saturate.Add(line.bytes, k.Bytes)
		}
		if line.holders > 1 {
			line.name += fmt.Sprintf(" (%d × %d)", line.holders, k.Bytes)
		}
		list = append(list, line)
	}
	slices.SortStableFunc(list, func(a, b peakLine) int { return cmp.Compare(b.bytes, a.bytes) })
	if rows <= 0 || rows >= len(list) {
		return list, 0, 0
	}
	for _, line := range list[rows:] {
		others, sum = others+line.holders, saturate.Add(sum, line.bytes)
	}
	return list[:rows], others, sum
}

// ranges formats sorted numbers, with consecutive numbers as a range.
func ranges(numbers []int) string {
	var b strings.Builder
	for i := 0; i < len(numbers); i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		first := numbers[i]
		for i+1 < len(numbers) && numbers[i+1] == numbers[i]+1 {
			i++
		}
		if b.WriteString(strconv.Itoa(first)); numbers[i] > first {
			fmt.Fprintf(&b, "–%d", numbers[i])
		}
	}
	return b.String()
}
