#!/usr/bin/env bash
# Tries the chart in a cluster of its own, which is removed at the end: bash deploy/helm/trial.sh
# Needs docker, kind, kubectl, helm, curl, and `nunatak` on the path, as after `make install`.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
export KUBECONFIG=$work/kubeconfig
end() {
    status=$?
    if ((status)); then
        kubectl get pods --output wide || true
        kubectl logs --selector app=nunatak --tail 50 || true
    fi
    for process in $(jobs -p); do kill "$process" || true; done
    kind delete cluster --name nunatak-trial
    rm -rf "$work"
    exit "$status"
}
trap end EXIT

kind create cluster --name nunatak-trial --wait 120s
index=https://download.pytorch.org/whl/cpu
docker build --file "$root/deploy/container/Dockerfile" --build-arg TORCH_INDEX=$index --tag nunatak:trial "$root"
kind load docker-image nunatak:trial --name nunatak-trial

# The stores, seen from here at ports of this machine.
kubectl apply --filename "$root/deploy/helm/trial.yaml"
kubectl rollout status deployment/db deployment/s3 --timeout 300s
kubectl port-forward service/db 15432:5432 >/dev/null &
kubectl port-forward service/s3 15000:5000 >/dev/null &
curl --silent --retry 20 --retry-connrefused --request PUT http://127.0.0.1:15000/bucket

# One task, trained here, in these stores.
export PGPASSWORD=trial-password AWS_ACCESS_KEY_ID=trial AWS_SECRET_ACCESS_KEY=trial
export AWS_ENDPOINT_URL=http://127.0.0.1:15000 AWS_DEFAULT_REGION=us-east-1
for text in "Thank you, that helped." "What a lovely answer!" "It works now." "You are very kind."; do
    printf '{"text": "%s", "label": "happy"}\n' "$text"
done >"$work/mood.jsonl"
for text in "Nobody answers me." "I want my money back." "It still does not work." "What a bad service."; do
    printf '{"text": "%s", "label": "angry"}\n' "$text"
done >>"$work/mood.jsonl"
nunatak train --task mood --data "$work/mood.jsonl" --method topk --layers 1 --epochs 5 --create --promote prod \
    --registry 'postgresql+psycopg://nunatak@127.0.0.1:15432/registry?blobs=s3://bucket/tasks'

# The chart, with all that has a switch and needs no other controller.
nunatak key create trial --file "$work/keys.json" >"$work/key"
kubectl create secret generic nunatak-keys --from-file "$work/keys.json"
kubectl create secret generic nunatak-registry --from-literal PGPASSWORD=$PGPASSWORD \
    --from-literal AWS_ACCESS_KEY_ID=$AWS_ACCESS_KEY_ID --from-literal AWS_SECRET_ACCESS_KEY=$AWS_SECRET_ACCESS_KEY
helm install nunatak "$root/deploy/helm" --wait --timeout 5m --set image.tag=trial,computeThreads=1,memory=2Gi \
    --set registry.s3.endpoint=http://s3:5000,registry.s3.region=us-east-1,taskMemoryBytes=268435456 \
    --set quotas.requestsPerDay=1000,audit.claim=acts,networkPolicy.enabled=true

# Answers, while every pod is replaced.
kubectl port-forward service/nunatak 18080:80 >/dev/null &
ask() {
    curl --silent --show-error --fail --retry 20 --retry-connrefused http://127.0.0.1:18080/v1/tasks/mood/predict \
        --header "authorization: Bearer $(tail -1 "$work/key")" --json '{"inputs": "Nobody has answered my letters."}'
}
ask
kubectl rollout restart deployment/nunatak
kubectl rollout status deployment/nunatak --timeout 300s
kill %3
kubectl port-forward service/nunatak 18080:80 >/dev/null &
ask
helm uninstall nunatak --wait
echo "the chart was installed, asked, restarted and removed"
