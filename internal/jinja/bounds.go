package jinja

import (
	"errors"
	"strings"
	"unsafe"
)

// ErrBound says that a rendering takes more than its bounds allow.
var ErrBound = errors.New("beyond the bounds of a rendering")

// Bounds of a template.
const (
	maxTemplate = 1 << 20 // bytes
	maxTokens   = 1 << 17
	maxNested   = 200 // parts of a template, values and calls within another
	maxStack    = 1 << 12
)

// Bounds of a rendering whose values have n bytes of text in v values. Beyond 128 MiB of text and a million values they grow
// no further. The depths have bounds of their own.
//
//	steps          2^21 + 4n + 512v
//	a text         4 MiB + 4n bytes
//	a list         2^16 + n + v items
//	values         16 MiB + 8n + 512v bytes that the template has made and still uses
//
// A step is an expression or a tag that is computed, an item that is compared, tested or sorted, 8 bytes of a text whose
// characters are looked at one by one, or 256 bytes that are copied or made. The time of a rendering is below a second for
// values that are small, and linear in n beyond that.
const (
	baseSteps = 1 << 21
	baseText  = 4 << 20
	baseItems = 1 << 16
	baseLive  = 16 << 20
)

// Bytes that count for values beside their text.
const (
	sizeText  = 16
	sizeItem  = 32
	sizeList  = 48
	sizeKey   = 128
	sizeFrame = 512
)

// meter counts what a rendering takes.
type meter struct {
	steps, mostSteps    int
	mostText, mostItems int
	mostLive            int64

	made    int64 // bytes of all values that the template has made
	began   int64 // made when the running tag or print began
	pending int64 // bytes that such tags had made when they called the macro that runs
	writers int64 // bytes of the texts that wait for a captured one
	next    int64 // made at which the values in use are counted again

	depth, stack int // of calls, and of the parts around them
}

// bound sets the bounds for the values of a rendering.
func (m *meter) bound(values map[string]any) {
	n, v := 0, 0
	var queue []any
	for _, value := range values {
		queue = append(queue, value)
	}
	for len(queue) > 0 && v < 1<<20 {
		value := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		v++
		switch value := value.(type) {
		case string:
			n += len(value)
		case *list:
			queue = append(queue, value.items...)
		case *dict:
			for _, key := range value.keys {
				n += len(keyText(key))
				queue = append(queue, value.values[key])
			}
		}
	}
	n = min(n, 1<<27)
	m.mostSteps = baseSteps + 4*n + 512*v
	m.mostText = baseText + 4*n
	m.mostItems = baseItems + n + v
	m.mostLive = int64(baseLive + 8*n + 512*v)
	m.next = m.mostLive
}

func keyText(key any) string {
	s, _ := key.(string)
	return s
}

// step counts one step.
func (s *state) step() { s.take(1) }

func (s *state) take(n int) {
	if s.steps += n; s.steps > s.mostSteps || n < 0 {
		fail("the template takes more than %d steps: %w", s.mostSteps, ErrBound)
	}
}

// scan counts the steps of looking at the characters of a text of n bytes.
func (s *state) scan(n int) { s.take(n/8 + 1) }

// copies counts the steps of copying or comparing n bytes.
func (s *state) copies(n int) { s.take(n / 256) }

// sized fails for a text of n bytes if that is too long, before it is made.
func (s *state) sized(n int) {
	if n > s.mostText || n < 0 {
		fail("more than %d bytes of text: %w", s.mostText, ErrBound)
	}
}

// text counts a text of n bytes, which is about to be made.
func (s *state) text(n int) {
	s.sized(n)
	s.makes(n + sizeText)
}

// new counts a text that a function of bounded growth has made.
func (s *state) new(text string) string {
	s.text(len(text))
	return text
}

// cut returns a part of a text on its own, which does not keep the whole text in memory.
func (s *state) cut(part string) string {
	s.text(len(part))
	return strings.Clone(part)
}

// items counts a list of n items, which is about to be made.
func (s *state) items(n int) {
	if n > s.mostItems || n < 0 {
		fail("a list has more than %d items: %w", s.mostItems, ErrBound)
	}
	s.makes(sizeList + n*sizeItem)
}

// makes counts a value of n bytes. When enough has been made it counts what is still in use.
func (s *state) makes(n int) {
	s.copies(n)
	if s.made += int64(n); s.made <= s.next {
		return
	}
	live := int64(s.live()+s.out.Len()) + s.pending + s.writers + s.made - s.began
	if live > s.mostLive {
		fail("the values of the template take more than %d bytes: %w", s.mostLive, ErrBound)
	}
	s.next = s.made + s.mostLive - live
}

// live returns the bytes of the values that names, loops and captured texts refer to.
func (s *state) live() (bytes int) {
	seen := map[any]bool{}
	queue := append([]any{s.vars, s.held}, s.roots...)
	for len(queue) > 0 {
		v := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		s.step()
		switch v := v.(type) {
		case nil, bool, int, float64, undefined, Func:
			continue
		case string:
			bytes += sizeText
			if len(v) >= sizeKey {
				if at := unsafe.StringData(v); !seen[at] {
					seen[at] = true
					bytes += len(v)
				}
			} else {
				bytes += len(v)
			}
			continue
		}
		if seen[v] {
			continue
		}
		seen[v] = true
		switch v := v.(type) {
		case *frame:
			if v == nil || v == s.given {
				continue
			}
			bytes += sizeFrame
			for _, value := range v.names {
				queue = append(queue, value)
			}
			queue = append(queue, v.up)
		case *list:
			bytes += sizeList + len(v.items)*(sizeItem-sizeText)
			queue = append(queue, v.items...)
		case *dict:
			bytes += v.size()
			queue = v.inside(queue)
		case *namespace:
			bytes += v.size()
			queue = v.inside(queue)
		case *loop:
			bytes += sizeList + (len(v.items)+len(v.rest))*sizeItem
			queue = append(append(queue, v.items...), v.rest...)
		case *macro:
			bytes += sizeKey
			queue = append(queue, v.home)
		case *callable:
			bytes += sizeKey
			queue = append(queue, v.holds...)
		case *cycler:
			bytes += sizeList
			queue = append(queue, v.items...)
		}
	}
	return bytes
}

func (d *dict) size() int { return sizeList + len(d.keys)*(sizeKey-2*sizeText) }

// inside appends the keys and values to a list.
func (d *dict) inside(list []any) []any {
	for _, key := range d.keys {
		list = append(list, key, d.values[key])
	}
	return list
}

// repeat returns n copies of a text.
func (s *state) repeat(text string, n int) string {
	if n = max(0, n); len(text) > 0 && n > s.mostText/len(text) {
		s.sized(s.mostText + 1)
	}
	s.text(len(text) * n)
	return strings.Repeat(text, n)
}

// joined is strings.Join of a text that is not too long.
func (s *state) joined(parts []string, separator string) string {
	n := 0
	for _, p := range parts {
		n += len(p) + len(separator)
		s.sized(n - len(separator))
	}
	s.take(len(parts))
	s.text(n)
	return strings.Join(parts, separator)
}

// writer is a text that is written within the bounds.
type writer struct {
	strings.Builder
	s *state
}

// put appends a text.
func (w *writer) put(text string) {
	w.s.sized(w.Len() + len(text))
	w.WriteString(text)
}

// done counts the text.
func (w *writer) done() string { return w.s.new(w.String()) }
