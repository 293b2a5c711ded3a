package vision

import (
	"bytes"
)

var jpegFormat = format{"JPEG", prefix("\xff\xd8\xff"), jpegSize, decodeJPEG, jpegOrientation}

// jpegSize returns the size in the frame header.
func jpegSize(file []byte) (width, height int, err error) {
	d := jpegDecoder{file: file, at: 2}
	err = d.read(true)
	return d.width, d.height, err
}

// decodeJPEG decodes a file of the sizes that its header was admitted with.
func decodeJPEG(file []byte, _ DecodeOptions) (*Image, error) {
	d := jpegDecoder{file: file, at: 2}
	if err := d.read(false); err != nil {
		return nil, err
	}
	return d.image(), nil
}

// jpegOrientation looks at the application segments before the first scan.
func jpegOrientation(file []byte) int {
	var exif, xmp []byte
	for rest := file[2:]; len(rest) >= 4; {
		marker, n := rest[1], int(rest[2])<<8|int(rest[3])
		if rest[0] != 0xff {
			break
		}
		if marker == 0xff { // fill bytes may precede a marker
			rest = rest[1:]
			continue
		}
		if marker == jpegSOS || n < 2 || n > len(rest)-2 {
			break
		}
		if body := rest[4 : 2+n]; marker == jpegAPP0+1 {
			switch {
			case exif == nil && bytes.HasPrefix(body, []byte("Exif\x00\x00")):
				exif = body
			case bytes.HasPrefix(body, []byte("http://ns.adobe.com/xap/1.0/\x00")):
				xmp = body
			}
		}
		rest = rest[2+n:]
	}
	return orientation(exif, xmp)
}
