package meter

import (
	"reflect"
	"strings"
	"sync"
)

// Storage stores named blobs, as the Storage options of packages quant8, amp, qlora and transformer do.
type Storage interface {
	Acquire(key string, size int) ([]byte, error)
	Release(key string, dirty bool) error
}

// Pages is a Storage that passes all calls on to another Storage and tells a [Monitor] which blobs are in use, and by
// which layer. [Monitor.Pages] makes it. It is safe for concurrent use. The zero value and nil have no Storage: their
// methods do nothing, or return errors that wrap [snug.ErrConfig].
type Pages struct {
	storage Storage
	monitor *Monitor
	tier    Tier
	held    func() int64
	rest    *Holder

	mu   sync.Mutex
	keys map[string]*pageUse
	used int64 // bytes of all blobs in use
}

// pageUse is a blob that is or was in use.
type pageUse struct {
	*Holder
	size int64
	pins int
}

// restOfPages names the memory of a Storage that does not belong to a blob in use.
const restOfPages = "pages that wait, are on their way or free"

// Pages returns a Storage over s that counts the blobs in use on a tier. The beginning of the key tells the component:
// "weights/" are weights, "master/" master weights, "checkpoints/" activations, and everything else is state. The rest
// of the key tells the layer.
//
// held, unless nil, returns the bytes that s takes in memory, such as HostBytes in the Stats of an [offload.Store].
// Pages calls held whenever a blob is acquired, released or deleted. The bytes beyond the blobs in use count for the
// component rest. Pages returns nil if s is nil. It holds an entry for each key that was ever in use.
//
// [offload.Store]: https://pkg.go.dev/github.com/snug-ml/snug/offload#Store
func (m *Monitor) Pages(s Storage, t Tier, rest Component, held func() int64) *Pages {
	if s == nil {
		return nil
	}
	return &Pages{storage: s, monitor: m, tier: t, held: held, rest: m.Holder(t, rest, restOfPages), keys: map[string]*pageUse{}}
}

// Acquire acquires a blob of the Storage, and counts it.
func (p *Pages) Acquire(key string, size int) ([]byte, error) {
	if p == nil || p.storage == nil {
		return nil, errNoPages
	}
	blob, err := p.storage.Acquire(key, size)
	if err != nil {
		return nil, err
	}
	counted := false
	defer func() {
		if !counted { // a function of the caller has panicked
			_ = p.storage.Release(key, false)
		}
	}()
	p.count(key, int64(len(blob)), 1)
	counted = true
	return blob, nil
}

// Release releases a blob of the Storage.
func (p *Pages) Release(key string, dirty bool) error {
	if p == nil || p.storage == nil {
		return errNoPages
	}
	err := p.storage.Release(key, dirty)
	p.count(key, 0, -1)
	return err
}

// Deleter is a [Storage] whose blobs can be deleted.
type Deleter interface {
	Delete(key string) error
}

// Delete deletes a blob of the Storage, which must be a [Deleter].
func (p *Pages) Delete(key string) error {
	if p == nil || p.storage == nil {
		return errNoPages
	}
	s, can := p.storage.(Deleter)
	if !can {
		return invalid("pages: the Storage, a %T, has no method Delete", p.storage)
	}
	err := s.Delete(key)
	p.count("", 0, 0)
	return err
}

// Prefetch tells the Storage which blobs are used next, if it is a Prefetcher of package quant8, which
// package meter does not link.
func (p *Pages) Prefetch(keys ...string) {
	if p == nil {
		return
	}
	if s, can := p.storage.(interface{ Prefetch(keys ...string) }); can {
		s.Prefetch(keys...)
	}
}

// Together returns how many blobs of size bytes a step should hold at once. The answer is that of the Storage, or 1 if
// it is no Grouper of package quant8.
func (p *Pages) Together(size int) int {
	if p == nil {
		return 1
	}
	if s, can := p.storage.(interface{ Together(size int) int }); can {
		return s.Together(size)
	}
	return 1
}

// StoredIn reports whether the blobs lie in the given storage, for example a store that is about to commit.
func (p *Pages) StoredIn(storage any) bool {
	if p == nil || p.storage == nil || storage == nil {
		return false
	}
	if s, can := p.storage.(interface{ StoredIn(storage any) bool }); can {
		return s.StoredIn(storage)
	}
	return reflect.TypeOf(storage).Comparable() && reflect.TypeOf(p.storage).Comparable() && any(p.storage) == storage
}

// count notes that a blob has one use more or one use less, and how many bytes the Storage takes. It makes decreases
// before increases, so that no sum exceeds the bytes that were held.
func (p *Pages) count(key string, size int64, pins int) {
	if p.rest == nil {
		return
	}
	all := int64(0)
	if p.held != nil {
		all = p.held()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var u *pageUse
	change := int64(0)
	if key != "" {
		if u = p.keys[key]; u == nil {
			c, layer := pageOf(key)
			u = &pageUse{Holder: p.monitor.Holder(p.tier, c, layer)}
			p.keys[key] = u
		}
		was := u.pins
		if u.pins = max(0, was+pins); was == 0 && u.pins > 0 {
			u.size, change = size, size
		} else if was > 0 && u.pins == 0 {
			change = -u.size
		}
	}
	p.used += change
	if change < 0 {
		u.Add(change)
	}
	p.rest.Set(max(0, all-p.used))
	if change > 0 {
		u.Add(change)
	}
}

// pageOf returns the component and the layer of a blob by its key.
func pageOf(key string) (Component, string) {
	kind, rest, _ := strings.Cut(key, "/")
	c := State
	switch kind {
	case "weights":
		c = Weights
	case "checkpoints":
		return Activations, "checkpoints on their way"
	case "master":
		c = Masters
	}
	if c != Weights && strings.Contains(rest, "/") { // the number of a chunk
		rest = rest[:strings.LastIndexByte(rest, '/')]
	}
	return c, LayerOf(rest) + ", pages"
}
