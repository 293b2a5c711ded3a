package vision

import (
	"bytes"
	"encoding/binary"
	"regexp"
)

// orientationTag is Orientation of TIFF 6.0, which EXIF has taken over.
const orientationTag = 0x112

// exifOrientation returns the orientation in an EXIF block, which is a small TIFF file, or 0.
func exifOrientation(exif []byte) int {
	exif = bytes.TrimPrefix(exif, []byte("Exif\x00\x00"))
	if len(exif) < 8 {
		return 0
	}
	var order binary.ByteOrder
	switch string(exif[:2]) {
	case "II":
		order = binary.LittleEndian
	case "MM":
		order = binary.BigEndian
	default:
		return 0
	}
	at := uint64(order.Uint32(exif[4:]))
	if at+2 > uint64(len(exif)) {
		return 0
	}
	entries := exif[at+2:]
	for range order.Uint16(exif[at:]) {
		if len(entries) < 12 {
			return 0
		}
		e := entries[:12]
		entries = entries[12:]
		if order.Uint16(e) != orientationTag || order.Uint32(e[4:]) != 1 {
			continue
		}
		switch order.Uint16(e[2:]) {
		case 1: // a byte
			return int(e[8])
		case 3: // a short
			return int(order.Uint16(e[8:]))
		case 4: // a long
			return int(min(order.Uint32(e[8:]), 9))
		}
	}
	return 0
}

// xmpPattern is Pillow's.
var xmpPattern = regexp.MustCompile(`tiff:Orientation(?:="|>)([0-9])`)

// xmpOrientation returns the orientation in a packet of XMP, or 0.
func xmpOrientation(xmp []byte) int {
	if found := xmpPattern.FindSubmatch(xmp); found != nil {
		return int(found[1][0] - '0')
	}
	return 0
}

// orientation prefers EXIF to XMP, as Pillow does.
func orientation(exif, xmp []byte) int {
	if o := exifOrientation(exif); o != 0 {
		return o
	}
	return xmpOrientation(xmp)
}
