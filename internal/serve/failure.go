package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// failure is an error as the protocol has it.
type failure struct {
	status  int
	message string
	param   string // the field that is wrong, if it is one
	code    string
}

// refuse returns the failure of a request whose field is wrong.
func refuse(param, format string, args ...any) *failure {
	return &failure{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...), param: param, code: "invalid_value"}
}

// unsupported returns the failure of a request that wants what the server cannot do.
func unsupported(param, format string, args ...any) *failure {
	return &failure{status: http.StatusBadRequest, message: fmt.Sprintf(format, args...), param: param, code: "unsupported_parameter"}
}

// kind returns the type of an error.
func (f *failure) kind() string {
	switch {
	case f.status == http.StatusUnauthorized:
		return "authentication_error"
	case f.status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case f.status >= http.StatusInternalServerError:
		return "server_error"
	}
	return "invalid_request_error"
}

// body returns the JSON of a failure.
func (f *failure) body() any {
	orNull := func(text string) any {
		if text == "" {
			return nil
		}
		return text
	}
	return map[string]any{"error": map[string]any{"message": f.message, "type": f.kind(), "param": orNull(f.param), "code": orNull(f.code)}}
}

// write answers a request by a failure.
func (f *failure) write(w http.ResponseWriter) {
	switch f.status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "2")
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", "Bearer")
	case http.StatusRequestEntityTooLarge, http.StatusRequestTimeout:
		w.Header().Set("Connection", "close")
	}
	writeJSON(w, f.status, f.body())
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(body) // a client that has gone away reads nothing
}
