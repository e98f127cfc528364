// Writes objects of every kind of the API in the two encodings of Go clients: JSON and protobuf.
//
// Each kind has three objects: "empty" has no field set, "zeros" has each pointer set to a zero value, "filled" has each
// field set. To write objects.jsonl.gz again:
//
//	go mod tidy && go run . | gzip -9n > objects.jsonl.gz
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// depthMax bounds types that contain themselves, such as the schemas of custom resources.
const depthMax = 12

var moment = time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)

type filler struct {
	zeros  bool
	count  int
	inside []reflect.Type
}

func (f *filler) next() int {
	if f.zeros {
		return 0
	}
	f.count++
	return f.count
}

func (f *filler) text() string {
	if f.zeros {
		return ""
	}
	return fmt.Sprintf("s%d é&<", f.next())
}

func (f *filler) raw() []byte {
	return []byte(fmt.Sprintf(`{"b":[%d,{"a":"x & y"}]}`, f.next()))
}

func (f *filler) fill(value reflect.Value) {
	switch target := value.Addr().Interface().(type) {
	case *metav1.Time:
		*target = metav1.NewTime(moment)
		return
	case *metav1.MicroTime:
		*target = metav1.NewMicroTime(moment)
		return
	case *resource.Quantity:
		*target = resource.MustParse(fmt.Sprintf("%dMi", f.next()))
		return
	case *intstr.IntOrString:
		*target = intstr.FromInt32(int32(f.next()))
		if f.count%2 == 1 {
			*target = intstr.FromString(f.text())
		}
		return
	case *runtime.RawExtension:
		target.Raw = f.raw()
		return
	case *metav1.FieldsV1:
		target.SetRawBytes(f.raw())
		return
	case *apiextensionsv1.JSON:
		target.Raw = f.raw()
		return
	case *apiextensionsv1.JSONSchemaPropsOrBool:
		target.Allows = true
		if f.next()%2 == 1 {
			return
		}
		target.Schema = &apiextensionsv1.JSONSchemaProps{Type: f.text()}
		return
	case *apiextensionsv1.JSONSchemaPropsOrArray:
		if f.next()%2 == 1 {
			target.JSONSchemas = []apiextensionsv1.JSONSchemaProps{{Type: f.text()}, {}}
			return
		}
		target.Schema = &apiextensionsv1.JSONSchemaProps{Type: f.text()}
		return
	case *apiextensionsv1.JSONSchemaPropsOrStringArray:
		if f.next()%2 == 1 {
			target.Property = []string{f.text(), "x"}
			return
		}
		target.Schema = &apiextensionsv1.JSONSchemaProps{Type: f.text()}
		return
	case *metav1.TypeMeta:
		return
	}
	switch value.Kind() {
	case reflect.String:
		value.SetString(f.text())
	case reflect.Bool:
		value.SetBool(!f.zeros)
	case reflect.Int32, reflect.Int64:
		number := int64(f.next())
		if number%3 == 0 {
			number = -number
		}
		value.SetInt(number)
	case reflect.Float64:
		value.SetFloat(float64(f.next()) + 0.5*float64(f.next()%2))
	case reflect.Pointer:
		if f.skips(value.Type().Elem()) {
			return
		}
		value.Set(reflect.New(value.Type().Elem()))
		f.fill(value.Elem())
	case reflect.Slice:
		if f.zeros || f.skips(value.Type().Elem()) {
			return
		}
		if value.Type().Elem().Kind() == reflect.Uint8 {
			value.SetBytes([]byte(f.text()))
			return
		}
		value.Set(reflect.MakeSlice(value.Type(), 2, 2))
		f.fill(value.Index(0)) // the second item has no field set
	case reflect.Map:
		if f.zeros || f.skips(value.Type().Elem()) {
			return
		}
		value.Set(reflect.MakeMap(value.Type()))
		for range 2 {
			key, item := reflect.New(value.Type().Key()).Elem(), reflect.New(value.Type().Elem()).Elem()
			f.fill(key)
			f.fill(item)
			value.SetMapIndex(key, item)
		}
	case reflect.Struct:
		if f.skips(value.Type()) {
			return
		}
		f.inside = append(f.inside, value.Type())
		for i := range value.NumField() {
			if value.Type().Field(i).IsExported() {
				f.fill(value.Field(i))
			}
		}
		f.inside = f.inside[:len(f.inside)-1]
	default:
		panic(value.Type().String())
	}
}

// skips reports whether a type is inside itself already, or too deep.
func (f *filler) skips(inner reflect.Type) bool {
	for _, outer := range f.inside {
		if outer == inner {
			return true
		}
	}
	return len(f.inside) > depthMax
}

type entry struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Form       string          `json:"form"`
	JSON       json.RawMessage `json:"json"`
	Protobuf   []byte          `json:"protobuf"`
}

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistrationv1.AddToScheme, appsv1.AddToScheme, authenticationv1.AddToScheme,
		authorizationv1.AddToScheme, autoscalingv1.AddToScheme, batchv1.AddToScheme, coordinationv1.AddToScheme,
		corev1.AddToScheme,
		discoveryv1.AddToScheme, eventsv1.AddToScheme, networkingv1.AddToScheme, nodev1.AddToScheme,
		policyv1.AddToScheme, rbacv1.AddToScheme, resourcev1.AddToScheme, resourcev1alpha3.AddToScheme,
		resourcev1beta1.AddToScheme, resourcev1beta2.AddToScheme, schedulingv1.AddToScheme,
		schedulingv1beta1.AddToScheme, apiextensionsv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	var kinds []schema.GroupVersionKind
	for gvk := range scheme.AllKnownTypes() {
		own := !strings.HasSuffix(gvk.Kind, "List") && !strings.HasSuffix(gvk.Kind, "Options") && gvk.Kind != "WatchEvent"
		if gvk.Kind == "DeleteOptions" && gvk.Version == "v1" && gvk.Group == "" {
			own = true
		}
		if own && gvk.Version != runtime.APIVersionInternal {
			kinds = append(kinds, gvk)
		}
	}
	sort.Slice(kinds, func(i, j int) bool { return kinds[i].String() < kinds[j].String() })
	serializer := protobuf.NewSerializer(scheme, scheme)
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	for _, gvk := range kinds {
		for _, form := range []string{"empty", "zeros", "filled"} {
			object, err := scheme.New(gvk)
			if err != nil {
				panic(err)
			}
			if form != "empty" {
				(&filler{zeros: form == "zeros"}).fill(reflect.ValueOf(object).Elem())
			}
			object.GetObjectKind().SetGroupVersionKind(gvk)
			var wire bytes.Buffer
			if err := serializer.Encode(object, &wire); err != nil {
				panic(fmt.Sprintf("%s: %s", gvk, err))
			}
			text, err := json.Marshal(object)
			if err != nil {
				panic(fmt.Sprintf("%s %s: %s", gvk, form, err))
			}
			if err := out.Encode(entry{gvk.GroupVersion().String(), gvk.Kind, form, text, wire.Bytes()}); err != nil {
				panic(err)
			}
		}
	}
}
