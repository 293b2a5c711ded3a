package offload

import "container/heap"

// victims is a heap of the pages in memory that are not pinned. The page to evict next is
// on top.
type victims []*page

var _ heap.Interface = (*victims)(nil)

// top returns the page to evict next, nil if there is none.
func (v victims) top() *page {
	if len(v) == 0 {
		return nil
	}
	return v[0]
}

func (v victims) Len() int { return len(v) }

// Less orders by key, and pages with unknown next use by age.
func (v victims) Less(i, j int) bool {
	if v[i].key != v[j].key {
		return v[i].key > v[j].key
	}
	return v[i].last < v[j].last
}

func (v victims) Swap(i, j int) {
	v[i], v[j] = v[j], v[i]
	v[i].index, v[j].index = i, j
}

func (v *victims) Push(x any) {
	p := x.(*page)
	p.index = len(*v)
	*v = append(*v, p)
}

func (v *victims) Pop() any {
	last := len(*v) - 1
	p := (*v)[last]
	(*v)[last] = nil
	*v = (*v)[:last]
	p.index = -1
	return p
}

// rekey gives every page the key that follows from the order of accesses.
func (s *Store) rekey() {
	for _, obj := range s.objects {
		for i := range obj.pages {
			p := &obj.pages[i]
			p.key = s.order.defaultKey(p)
		}
	}
	s.order.assignKeys()
	heap.Init(&s.victims)
}
