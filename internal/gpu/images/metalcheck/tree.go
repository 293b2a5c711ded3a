package main

import "encoding/json"

// node is a node of clang's syntax tree.
type node struct {
	ID         string
	Kind, Name string
	Loc        position
	Range      struct{ Begin, End position }
	Type       struct{ QualType string }
	IsImplicit bool
	Virtual    bool

	PreviousDecl   string
	ReferencedDecl *struct{ ID, Kind, Name string }
	Inner          []*node

	at place // where the node is, filled in by locate
}

// position is a place as clang writes it: what is as it was in the place before
// is left out.
type position struct {
	File      string
	Line, Col int

	SpellingLoc, ExpansionLoc *position // in place of the others, inside of a macro
}

type place struct {
	file string
	line int
}

func parse(text []byte) (*node, error) {
	root := &node{}
	if err := json.Unmarshal(text, root); err != nil {
		return nil, err
	}
	var last place
	locate(root, &last)
	return root, nil
}

// locate fills in where nodes are, in the order in which clang wrote them.
func locate(n *node, last *place) {
	n.at = last.read(&n.Loc)
	begin := last.read(&n.Range.Begin)
	last.read(&n.Range.End)
	if n.Loc == (position{}) { // an expression
		n.at = begin
	}
	for _, child := range n.Inner {
		locate(child, last)
	}
}

// read brings last to a position and returns it; inside of a macro that is where
// the macro stands.
func (last *place) read(p *position) place {
	if p.ExpansionLoc != nil {
		if p.SpellingLoc != nil {
			last.read(p.SpellingLoc)
		}
		return last.read(p.ExpansionLoc)
	}
	if p.File != "" {
		last.file = p.File
	}
	if p.Line != 0 {
		last.line = p.Line
	}
	return *last
}
