// Serves plugins of NRI as a container runtime does, with NRI's own adaptation package.
//
// Usage: nri-runtime SOCKET REQUEST_TIMEOUT_MS PODS CONTAINERS PADDING
//
// The runtime has so many pods and containers, each with an environment variable of PADDING bytes. It reads a command
// from each line of stdin: the event, the sandbox's ID and the container's, if any. It writes a JSON object for each
// answer, each synchronization of a plugin and each update of containers.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

type line struct {
	Kind    string   `json:"kind"`
	Error   string   `json:"error"`
	CPUs    string   `json:"cpus"`
	Env     int      `json:"env"`
	Updates []string `json:"updates"`
}

var (
	output  sync.Mutex
	started atomic.Bool
)

func write(value line) {
	output.Lock()
	defer output.Unlock()
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}

func number(index int) int {
	value, err := strconv.Atoi(os.Args[index])
	if err != nil {
		panic(err)
	}
	return value
}

func ids(updates []*api.ContainerUpdate) []string {
	found := []string{}
	for _, update := range updates {
		found = append(found, update.GetContainerId()+"="+update.GetLinux().GetResources().GetCpu().GetCpus())
	}
	return found
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func pod(id string) *api.PodSandbox {
	return &api.PodSandbox{Id: id, Uid: "uid-" + id, Namespace: "default", Name: "pod-" + id}
}

func container(sandbox, id string) *api.Container {
	return &api.Container{Id: id, PodSandboxId: sandbox, Name: "name-" + id}
}

// event calls plugins; before NRI 0.12 all these requests are StateChangeEvents.
func event(runtime *adaptation.Adaptation, method string, pod *api.PodSandbox, container *api.Container) error {
	ctx := context.Background()
	switch method {
	case "RunPodSandbox":
		return runtime.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: pod})
	case "StopPodSandbox":
		return runtime.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: pod})
	case "RemovePodSandbox":
		return runtime.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: pod})
	case "RemoveContainer":
		return runtime.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: pod, Container: container})
	}
	panic(method)
}

func main() {
	adaptation.SetPluginRequestTimeout(time.Duration(number(2)) * time.Millisecond)
	var pods []*api.PodSandbox
	var containers []*api.Container
	for i := range number(3) {
		pods = append(pods, pod(fmt.Sprintf("s%d", i)))
	}
	for i := range number(4) {
		item := container("s0", fmt.Sprintf("c%d", i))
		item.Env = []string{"PADDING=" + strings.Repeat("x", number(5))}
		containers = append(containers, item)
	}
	synchronize := func(ctx context.Context, plugin adaptation.SyncCB) error {
		updates, err := plugin(ctx, pods, containers)
		if !started.Load() { // of plugins that the runtime starts itself, which are none
			return err
		}
		write(line{Kind: "synchronized", Error: message(err), Updates: ids(updates)})
		return err
	}
	update := func(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
		write(line{Kind: "update", Updates: ids(updates)})
		return updates[1:], nil
	}
	runtime, err := adaptation.New("containerd", "v2.0.0", synchronize, update,
		adaptation.WithSocketPath(os.Args[1]), adaptation.WithPluginPath("/nonexistent"),
		adaptation.WithPluginConfigPath("/nonexistent"))
	if err != nil {
		panic(err)
	}
	if err := runtime.Start(); err != nil {
		panic(err)
	}
	started.Store(true)
	write(line{Kind: "started"})
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		words := append(strings.Fields(input.Text()), "")
		block := runtime.BlockPluginSync() // as containerd does for each event
		answer := line{Kind: words[0]}
		switch words[0] {
		case "CreateContainer":
			response, err := runtime.CreateContainer(context.Background(), &api.CreateContainerRequest{
				Pod: pod(words[1]), Container: container(words[1], words[2])})
			answer.Error = message(err)
			answer.CPUs = response.GetAdjust().GetLinux().GetResources().GetCpu().GetCpus()
			answer.Env = len(response.GetAdjust().GetEnv())
			answer.Updates = ids(response.GetUpdate())
		case "StopContainer":
			response, err := runtime.StopContainer(context.Background(), &api.StopContainerRequest{
				Pod: pod(words[1]), Container: container(words[1], words[2])})
			answer.Error = message(err)
			answer.Updates = ids(response.GetUpdate())
		default:
			answer.Error = message(event(runtime, words[0], pod(words[1]), container(words[1], words[2])))
		}
		block.Unblock()
		write(answer)
	}
}
