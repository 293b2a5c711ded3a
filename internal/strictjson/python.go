package strictjson

import "bytes"

// Python returns a document in which Infinity, -Infinity and NaN are JSON where values are, which Python's json writes and reads: 1e999 and
// -1e999, which no float64 holds and Python reads as infinite, and the string "NaN". A document without them is returned as it is.
func Python(data []byte) []byte {
	words := [...]struct{ from, to string }{{"Infinity", "1e999"}, {"NaN", `"NaN"`}} // the minus stays before the number
	var out []byte
	done := 0 // bytes of data that out has
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
			continue
		case 'I', 'N':
		default:
			continue
		}
		for _, w := range words {
			end := i + len(w.from)
			if bytes.HasPrefix(data[i:], []byte(w.from)) && !joins(data, i-1, w.from == "Infinity") && !joins(data, end, false) {
				out, done = append(append(out, data[done:i]...), w.to...), end
				i = end - 1
				break
			}
		}
	}
	if out == nil {
		return data
	}
	return append(out, data[done:]...)
}

// joins reports whether the byte at an index is a part of the word beside it: all are but white space and what separates values.
func joins(data []byte, at int, minus bool) bool {
	return at >= 0 && at < len(data) && !(minus && data[at] == '-') && bytes.IndexByte([]byte(" \t\r\n,:[]{}"), data[at]) < 0
}
