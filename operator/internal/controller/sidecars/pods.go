// SPDX-License-Identifier: Apache-2.0

package sidecars

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// podHandler makes the controller count the sidecars of a pool again when pods come and go. A pod's record never changes.
func podHandler() handler.TypedEventHandler[*metav1.PartialObjectMetadata, reconcile.Request] {
	enqueue := func(pod *metav1.PartialObjectMetadata, queue queue) {
		if namespace, name, ok := strings.Cut(writtenOf(pod).Pool, "/"); ok {
			queue.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}, countDelay)
		}
	}
	return handler.TypedFuncs[*metav1.PartialObjectMetadata, reconcile.Request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*metav1.PartialObjectMetadata], queue queue) {
			enqueue(e.Object, queue)
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*metav1.PartialObjectMetadata], queue queue) {
			enqueue(e.Object, queue)
		},
	}
}
