-- Health of an InferenceService for Argo CD, from its conditions as kstatus reads them.
-- Stalled is the only fault that waiting does not cure; Ready stays True while the replicas of another revision serve.
local function condition(kind)
  for _, found in ipairs((obj.status or {}).conditions or {}) do
    if found.type == kind and (kind == "Ready" or found.status == "True") then
      return found
    end
  end
  return nil
end

local seen = (obj.status or {}).observedGeneration
if seen == nil or seen ~= obj.metadata.generation then
  return { status = "Progressing", message = "the operator has not seen this spec yet" }
end
local stalled = condition("Stalled")
if stalled then
  return { status = "Degraded", message = stalled.reason .. ": " .. stalled.message }
end
local ready = condition("Ready")
if ready and ready.reason == "RolloutPaused" then
  return { status = "Suspended", message = ready.message }
end
if ready == nil or ready.status ~= "True" or condition("Reconciling") then
  return { status = "Progressing", message = ready and (ready.reason .. ": " .. ready.message) or "not ready yet" }
end
local degraded = condition("Degraded")
if degraded and (degraded.reason == "ReplicasFailing" or degraded.reason == "DeviceFailed") then
  -- Others serve, and another replica takes the place: nothing that a sync has to fail for.
  return { status = "Progressing", message = degraded.reason .. ": " .. degraded.message }
end
if degraded then
  return { status = "Degraded", message = degraded.reason .. ": " .. degraded.message }
end
if ready.reason == "ScaledToZero" then
  return { status = "Suspended", message = ready.message }
end
return { status = "Healthy", message = ready.message }
