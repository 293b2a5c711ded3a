package gpu

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// lzmaText has matches at near and far distances, runs, and repetitions of each of the last four distances.
func lzmaText() []byte {
	var b []byte
	for i := range 600 {
		if i%5 != 0 {
			b = fmt.Appendf(b, "ld.global.f32 %%f%d; ", i*i%37)
		} else {
			b = append(b, bytes.Repeat([]byte{byte(i)}, i%17+1)...)
		}
	}
	return b
}

// lzmaStreams are what liblzma 5.4.1 made of it with preset 9 | PRESET_EXTREME, behind the byte of properties.
var lzmaStreams = []struct{ name, text string }{
	{"lc=0 lp=4 pb=4", `
2AAAGwwWsS4j9563EkNaSn9B3QQ2I4Pup0DaxIBt33gIHegu5DyaD6vS9hsnevk25VvYLFypCJvcG3+eDXUU4Rks7syhxMHy3q7Dr6QoRcaB8xjnwBtXd0
Xt4KiqR0pFSkOnnsWqSsLvvo2JWXn7/TWRUB+UOTDJBv4+0cgq8b2o6/VI388fsgMGxAvXBLDpP1qsbldXIbXWH46CTVWrZ5AzlEhpOK0ziX7KVFZpR/x/
8r7f+zwt8XdG3hS2uIQiWrdCm3UmRmnkxGYUdlVOcnu+eH0F5NKo77VAkc/6+9Prpwa9bEyNiitFiqlzLv3Zz3WkX8TWuOrTMVDL+wtFqa2BO9jDyMDUp9
12J5w5on4UeTaIFAip91m+XXZRd0cdQghE3HUw++o+nGHCVcT5R+i/Kf/rR7HwCyGn1EjbYNVhL6hCHD7wESKdWgQDQamHdYnzZh5PdQ5fwMqd4wDH2I/A
RjPS4IPOFnDEuzIJBx1wMo+H3mRPW7KeR0JldJRB1svlqSAJT+X8ZdgoN0cKDSfxvrs6Qqsx1Ncn1vvkIohRv0IocLbAjXmpSntiwejQRZ1k83VDYhjkky
WfhO36xJj9GzrRLfkh8/LGBQWUJp/vl8A+u/TMfyDD+cwJvKj2d+TsNGsejlOqwmL/1dnxWz3b6UBdv2dMn/GprTqjpuHtYk0YvY7blNCLlUR2cxbxcDYy
0E70hMRomsqK98SztGmWlPw9nQXfIc87rNb951zGijv3eoXqGchMk6PeKkT7zWrr/voOydqxVLrscPQe3dGqRsAFFL9pj3IJFPnwqp1sEM2mT+EOQWm4cT
qSsceQeJkVMLtIqZDrIVk8xh32Oep7OMoYR+tfmkC849tqv4t+W9XL9rYQrgBjx7Gdn90TWuj4tD+1cs7RkhgS8Tgi+hPbH/9/AroA
`},
	{"lc=3 lp=0 pb=0", `
AwAAHO6AeVelL0PCjNPQaFoaBqRt9klGj/wcstWqU0S0gVa3aqN46kGJbgB9Vm1nMr8E8SsDGKqR55rmwgVKCmQKL1rFEkh8LZyNlz2OnUc3m0Ti5EedwQ
b/YbpdyKL3Ls3cAzS7/IM1NmCVpUlgs+GatC4BupwvIuN0UBnKsHyVDlIWa4krsRupSgc9N2Tlz4ZtsSpwEUP1sHBR82tEvNKBYTLXdK5XEGD7oniUAsgv
FXGnKgz+4bjlrpckLkn654GDn7HW08hlzfO+DoFRPMtsuu6l/3Z0+cA2Tcv9TuGfIhEzJAqlz3rg6GD8LGXe0Rbd80MEVt8GVHIV32UOMAR73xxVeciviP
raBitdY/FkLaRWUQoaKo/tSK5y+w3ku9OuiiPWXkTIUDNpc7PdZPByDF9c5tQUJfTcbsUhz5+xEFGYzN9RSCEZL5UBNN6cUnAfPgdS8EyOD7EUnthjAwo5
diK5Uitm3Jca2k5JveZ+EXrffH33yg78Wb3xozIv4DWm4Fws9/Zu0f8Pkriypd75c5wyJNAsTdSGYk6iBjzqKUdS692JNzBm0/7rZppXrAedf/4nyRFvPQ
sqgWX/hU72bhTWOVGevy2GIfzfnrqu/tW9Zw3x1ULaXvmFj2nwuJlpo4g5wS9kYxYE3BIjHbnV7gF1jEoT37DmXtRViODD8MpzAg3Ov2mJWzAzv3sEIHNJ
k0IVgq93Zdlv82oHFZvLUAXE+r4iKhy+c6MYsmMcQZZlkoTMe8H28sOtLFNUKNiusOkgbj/SUKDYW0H+ElYR5wADVzsgYwaPhGL2omLwzToxbh52louWjk
hndt1JeYY6SJOF8VzIEZPWVWJoRgQEc0gGxZ2cqw5OaRApK6ztF223rxrbiIk0/cCgHw==
`},
	{"lc=0 lp=2 pb=2", `
bAAAGwwWsWk1V9utW1oGljpfp5c38FY+z2ySoIvEQ9OyZXY+X/GnXiehTgIwyOQaqFGoLwK2W3pWt2KM82cMd5w8tTSV2c0WepyoHf5eEmfU4rRj+jAMV+
3Ps/YQaDZn5NHiuDtlNXy6Mb1jZmPmAtFpiTm2KJ3EIdnD1ysZ14V0joJeX2NWXIhqO/Hbvj+/xl3DKBultdN2Wf4SNZPurqKRas5wTBl0dJ72RdPop4bC
ss/Qy6RrK5kHkkTLIjLRs0UXBbCF3eqFA/2dspyYXn98lsm3l6VffWgZPMqXhi2yKBA9VQ0mn0OptX1lOgNhvJh9PQQUQ1JFERjZ0Mwj52OQ7JbAZrpyy1
rKsOZX6RRT6FYSQxnxc1U7/jLAEgyB0nHBRw8ECJcj54RddbHPJHUceWNod6h9UpySqhAGq/Qv9Tshv0Ynw7u+4V63kZhHIbUyDG33XI1cHIugheDbKDI8
j8hJQ3x75V8dzt2oruXIivhrDlASSmGFyUcsNf/W9KJN9jpOwIEwcxy1/sPth7fID2OQ9Veh0fdVVvCFe7p2asp79dmRFlA+SLKUR5X53fy+F/OpRLa5eG
410QciCp8HGRjCMKyUDJ5IwzqqaGURmpB1OADSgVZR02pZ3nAvHoCXhWNUe9n4rHOn8Z5lfDygXxM0AvpC0FBBhWY+b5vF88dpwDNdhG6fLXYFScf8pqBg
DAzXVW1XBIlRTSMb/XpROhhG1SBjcMKWZeKym6O3VIjo0pyC5L1O9LPS5+07Wg8h0i96r2ZU+El7u/EuuDxJObFNDynAp0lnvUy7DE3dtJTrgizfCAS/OB
3E8UMtLuseoEfk/xRbS30689jqnuMPs4nV3R4LgGwOjANiJ8PBFuICGDfK0ApcA4Nx/QsgRlcaY+4/l//7hWP3
`},
}

func lzmaStream(t testing.TB, text string) []byte {
	b, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(text, "\n", ""))
	require.NoError(t, err)
	return b
}

func TestUnpackLZMA(t *testing.T) {
	want := lzmaText()
	for _, s := range lzmaStreams {
		t.Run(s.name, func(t *testing.T) {
			stream := lzmaStream(t, s.text)
			got := make([]byte, len(want))
			require.NoError(t, unpackLZMA(got, stream, len(got)))
			require.Equal(t, want, got)
			for i := range stream {
				damaged := bytes.Clone(stream)
				damaged[i] ^= 0x10
				_ = unpackLZMA(got, damaged, len(got)) // the index has a checksum of the stream; here it may not panic
				if i < len(stream)-8 {
					require.Error(t, unpackLZMA(make([]byte, len(want)), stream[:i], len(want)), "cut at %d", i)
				}
			}
		})
	}
	require.NoError(t, unpackLZMA(make([]byte, 2), []byte{stored, 1, 2}, 2))
	require.Error(t, unpackLZMA(make([]byte, 3), []byte{stored, 1, 2}, 3))
	require.Error(t, unpackLZMA(make([]byte, 1), []byte{stored, 1, 2}, 1))
	require.Error(t, unpackLZMA(nil, nil, 0))
}

// FuzzUnpackLZMA gives an error or fills the output, for any bytes.
func FuzzUnpackLZMA(f *testing.F) {
	for _, s := range lzmaStreams {
		f.Add(lzmaStream(f, s.text), uint16(2000))
	}
	f.Fuzz(func(t *testing.T, stream []byte, size uint16) { _ = unpackLZMA(make([]byte, size), stream, int(size)) })
}
