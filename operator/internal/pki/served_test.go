// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"maps"
	"strings"
	"testing"
	"time"
)

// What a Secret of people lacks is said by the key that lacks it.
func TestCheckServed(t *testing.T) {
	authority, _ := mustAuthority(t, nil, start)
	good, _ := mustCertificate(t, authority, nil, nodeRequest(), start)
	other, _ := mustCertificate(t, authority, nil, nodeRequest(), start)
	with := func(key string, value []byte) Data {
		data := maps.Clone(good)
		data[key] = value
		return data
	}
	ends := start.Add(certificateLifetime)
	for name, c := range map[string]struct {
		data Data
		now  time.Time
		says string
	}{
		"good":                    {good, start, ""},
		"without an authority":    {with("ca.crt", nil), start, ""},
		"shortly before its end":  {good, ends.Add(-time.Second), ""},
		"at its end":              {good, ends, "its certificate has ended on 20"},
		"nothing":                 {nil, start, "it has no tls.crt"},
		"no key":                  {with("tls.key", nil), start, "it has no tls.key"},
		"another key":             {with("tls.key", other["tls.key"]), start, "its tls.crt and tls.key: "},
		"a key that is none":      {with("tls.key", []byte("key")), start, "its tls.crt and tls.key: "},
		"an authority that is no": {with("ca.crt", []byte("authority")), start, "its ca.crt: no PEM block"},
	} {
		got, err := CheckServed(c.data, c.now)
		if c.says == "" && (err != nil || got.Sub(ends).Abs() > time.Minute) || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: it ends on %v: %v", name, got, err)
		}
	}
}
