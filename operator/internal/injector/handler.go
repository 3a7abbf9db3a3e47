// SPDX-License-Identifier: Apache-2.0

// Package injector serves the webhook that gives pods their sidecars. What it decides is in package inject.
package injector

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"farpool.dev/farpool/operator/internal/inject"
)

// Path of the webhook.
const Path = "/inject"

// mostBytes of a review: an object of the API server has 1.5 MiB at the most, and stands in it once, as JSON.
const mostBytes = 8 << 20

// Results beside the reasons of refusals.
const (
	resultInjected  = "Injected"
	resultUnchanged = "Unchanged"
	resultFailed    = "Failed"
)

// Metrics are the injector's.
type Metrics struct {
	pods    *prometheus.CounterVec
	seconds prometheus.Histogram
	renewed prometheus.Gauge
}

// NewMetrics registers them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		pods: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "farpool_injector_pods_total", Help: "Pods that the webhook was asked about, by result: Injected, Unchanged, Failed, or the reason of a refusal."}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "farpool_injector_seconds", Help: "Seconds that the webhook took for a pod.",
			Buckets: []float64{0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.5},
		}),
		renewed: prometheus.NewGauge(prometheus.GaugeOpts{Name: "farpool_injector_certificate_expiry_timestamp_seconds", Help: "When the certificate that the webhook shows ends."}),
	}
	for _, reason := range inject.Reasons {
		m.pods.WithLabelValues(string(reason))
	}
	for _, result := range []string{resultInjected, resultUnchanged, resultFailed} {
		m.pods.WithLabelValues(result)
	}
	registry.MustRegister(m.pods, m.seconds, m.renewed)
	return m
}

// Handler answers the API server.
type Handler struct {
	pools    inject.Pools
	settings inject.Settings
	metrics  *Metrics
	clock    clock.PassiveClock
	log      logr.Logger
}

// NewHandler returns a handler that looks for pools in pools.
func NewHandler(pools inject.Pools, settings inject.Settings, metrics *Metrics, clock clock.PassiveClock, log logr.Logger) *Handler {
	return &Handler{pools, settings, metrics, clock, log}
}

func (h *Handler) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	began := h.clock.Now()
	defer func() { h.metrics.seconds.Observe(h.clock.Since(began).Seconds()) }()
	if request.Method != http.MethodPost {
		http.Error(writer, "POST an AdmissionReview here, as the API server does", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(writer, request.Body, mostBytes))
	if err != nil {
		h.metrics.pods.WithLabelValues(resultFailed).Inc()
		http.Error(writer, fmt.Sprintf("read an AdmissionReview: %v", err), http.StatusBadRequest)
		return
	}
	review := &admissionv1.AdmissionReview{}
	if err := json.Unmarshal(body, review); err != nil || review.Request == nil || review.GroupVersionKind() != admissionv1.SchemeGroupVersion.WithKind("AdmissionReview") {
		h.metrics.pods.WithLabelValues(resultFailed).Inc()
		http.Error(writer, "the body is no AdmissionReview of admission.k8s.io/v1 with a request", http.StatusBadRequest)
		return
	}
	review.Response, review.Request = h.answer(review.Request), nil
	answer, err := json.Marshal(review)
	if err != nil {
		http.Error(writer, fmt.Sprintf("write an AdmissionReview: %v", err), http.StatusInternalServerError)
		return
	}
	writer.Header().Set("Content-Type", "application/json")
	if _, err := writer.Write(answer); err != nil {
		h.log.V(1).Info("the API server has not waited for the answer", "why", err.Error())
	}
}

// answer decides about one pod.
func (h *Handler) answer(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true}
	pods := metav1.GroupVersionResource{Version: "v1", Resource: "pods"}
	if request.Resource != pods || request.SubResource != "" || request.Operation != admissionv1.Create {
		h.metrics.pods.WithLabelValues(resultUnchanged).Inc()
		return response
	}
	injection, err := inject.Pod(request.Object.Raw, request.Namespace, h.pools, h.settings)
	log := h.log.WithValues("namespace", request.Namespace, "pod", request.Name, "request", request.UID)
	switch refusal := inject.AsRefusal(err); {
	case refusal != nil:
		h.metrics.pods.WithLabelValues(string(refusal.Reason)).Inc()
		log.Info("refused a pod", "reason", refusal.Reason, "why", refusal.Message)
		response.Allowed = false
		response.Result = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: refusal.Error()}
	case err != nil:
		h.metrics.pods.WithLabelValues(resultFailed).Inc()
		log.Error(err, "a pod gets no sidecar")
		response.Allowed = false
		response.Result = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: err.Error()}
	case injection.Patch == nil:
		h.metrics.pods.WithLabelValues(resultUnchanged).Inc()
	default:
		h.metrics.pods.WithLabelValues(resultInjected).Inc()
		log.V(1).Info("gave a pod its sidecar", "pool", injection.Pool.Namespace+"/"+injection.Pool.Name)
		kind := admissionv1.PatchTypeJSONPatch
		response.Patch, response.PatchType = injection.Patch, &kind
	}
	if injection != nil {
		response.Warnings = injection.Warnings
	}
	return response
}

// expires notes when the webhook's certificate ends.
func (m *Metrics) expires(at time.Time) { m.renewed.Set(float64(at.Unix())) }
