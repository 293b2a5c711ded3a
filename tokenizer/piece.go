package tokenizer

// piece is a part of the text on its way through the chain.
type piece struct {
	text string
	// head is how many bytes at the front stand for the first character of the whole
	// text: 0 for a piece from further back.
	head int
	// raw says that text is bytes, which the model sees as characters of ByteLevel.
	raw bool
}

// cut returns a part of a piece.
func (p piece) cut(from, to int) piece {
	return piece{text: p.text[from:to], head: max(0, min(p.head, to)-from), raw: p.raw}
}

// prepend puts s before the text, as a part of its first character.
func (p *piece) prepend(s string) {
	p.text = s + p.text
	if p.head > 0 {
		p.head += len(s)
	}
}

// rewrite sets the text to one whose first character stems from the same place.
func (p *piece) rewrite(text string) {
	p.text = text
	if p.head > 0 {
		p.head = firstSize(text)
	}
}
